#!lua flags=allow-oom
-- vacate: replace a prediction that has arrived at another Redis server by a tombstone, which says that it moved. A cancel
-- that came meanwhile must be passed on first.
--
--   KEYS[1]  record    hash  {p}:rec:<id>
--   ARGV[1]  site      of the server where it arrived
--   ARGV[2]  canceled  '1': a cancel was passed on
--   Returns  'moved'   also if it had moved before
--            'cancel'  its caller asked to cancel it, which must be passed on first: nothing was written
--            'stays'   it is not leaving for that server: nothing was written
--
-- uses keys:     ID, channel, clock, events, input, output, queue, unspent
-- uses records:  RECORD_TTL_MS, read
-- uses log:      write
-- uses requeue:  CAME_TTL_MS

local id, site, canceled, now = keys.ID, ARGV[1], ARGV[2] == '1', keys.clock(ARGV[3])
local KEPT = { account = true, model = true, version = true, queue = true, kind = true, lane = true, status = true,
  created = true, seq = true, ticket = true, moves = true }

local r = records.read(id)
if not r then return 'stays' end
if r.moved == site then return 'moved' end
if r.leaving ~= site then return 'stays' end
if r.cancel == 'user' and not canceled then return 'cancel' end

local dropped = {}
for field in pairs(r) do
  if not KEPT[field] then dropped[#dropped + 1] = field end
end
redis.call('ZREM', keys.queue(r.queue, 'leaving'), id)
redis.call('UNLINK', keys.input(id), keys.output(id), keys.events(id))
redis.call('HDEL', KEYS[1], unpack(dropped))
redis.call('HSET', KEYS[1], 'moved', site)
-- not a record's life alone: there it begins with the end, and here with the move
local record_ttl = redis.call('HGET', keys.queue(r.queue, 'meta'), 'record_ttl_ms') or records.RECORD_TTL_MS
redis.call('PEXPIRE', KEYS[1], math.max(requeue.CAME_TTL_MS, record_ttl, tonumber(r.data_ttl_ms) or 0))
-- nothing of what was reserved is used here
if r.metered ~= '' then redis.call('ZADD', keys.unspent(), 0, id .. ' ' .. r.account) end
log.write('moved', id, r.queue, r.account, now, 'site ' .. site)
redis.call('PUBLISH', keys.channel(id), r.seq)
return 'moved'
