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

local id, site, canceled, now = ID, ARGV[1], ARGV[2] == '1', clock(ARGV[3])
local KEPT = { account = true, model = true, version = true, queue = true, kind = true, lane = true, status = true,
  created = true, seq = true, ticket = true, moves = true }

local r = read(id)
if not r then return 'stays' end
if r.moved == site then return 'moved' end
if r.leaving ~= site then return 'stays' end
if r.cancel == 'user' and not canceled then return 'cancel' end

local dropped = {}
for field in pairs(r) do
  if not KEPT[field] then dropped[#dropped + 1] = field end
end
redis.call('ZREM', queue_key(r.queue, 'leaving'), id)
redis.call('UNLINK', input_key(id), output_key(id), events_key(id))
redis.call('HDEL', KEYS[1], unpack(dropped))
redis.call('HSET', KEYS[1], 'moved', site)
-- not a record's life alone: there it begins with the end, and here with the move
local record_ttl = redis.call('HGET', queue_key(r.queue, 'meta'), 'record_ttl_ms') or RECORD_TTL_MS
redis.call('PEXPIRE', KEYS[1], math.max(CAME_TTL_MS, record_ttl, tonumber(r.data_ttl_ms) or 0))
-- nothing of what was reserved is used here
if r.metered ~= '' then redis.call('ZADD', unspent_key(), 0, id .. ' ' .. r.account) end
log('moved', id, r.queue, r.account, now, 'site ' .. site)
redis.call('PUBLISH', channel(id), r.seq)
return 'moved'
