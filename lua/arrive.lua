#!lua
-- arrive: accept a prediction that left another Redis server, with all its data and before new ones; or refuse it for
-- good. The decision is kept as long as a call may be repeated, so that a prediction never waits in two places.
--
--   KEYS[1]  record   hash    {p}:rec:<id>
--   KEYS[2]  came     string  {p}:came:<id>
--   KEYS[3]  idem     string  {p}:idem:<account>:<model>:<hash>, or the record's key without one
--   ARGV[1]  queue         the queue that it waits in from now on
--   ARGV[2]  move          the number of this move of it
--   ARGV[3]  refuses       '1': refuse it, unless it is here
--   ARGV[4]  input
--   ARGV[5]  held          what its idempotency key holds, '' without one
--   ARGV[6]  held_ttl_ms
--   ARGV[7]  weight        its account's in this queue, as of its change limits_rev; 0: what the queue knows stays
--   ARGV[8]  most_running
--   ARGV[9]  limits_rev
--   ARGV[10] now_ms        '' for the server's clock
--   ARGV[11…] field, value  of its record; or '' and an event, in their order
--   Returns  'here'     it is here, or was before and may have ended
--            'refused'  it is refused, or was before
--            'unknown'  the queue is not registered: nothing was written
--
-- uses keys:     ID, clock, events, input, queue
-- uses records:  EMPTY, append, read, since
-- uses log:      write
-- uses ends:     end_now
-- uses requeue:  CAME_TTL_MS, OLDER, put_in, take_over_limits

local id, queue, move, refuses = keys.ID, ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local input, held, held_ttl, now = ARGV[4], ARGV[5], ARGV[6], keys.clock(ARGV[10])
local NOT_BROUGHT = { stream = true, mid = true, charged = true, token = true, cancel = true, leaving = true, moved = true,
  due = true, arrival = true, place = true, eta50 = true, eta90 = true, runs = true, queue = true, version = true }

local number, became = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%S+)$')
if number and tonumber(number) >= move then return became end
local former = records.read(id)
-- It may be leaving here for another server, where it has arrived and from where it comes back: this record is a remainder,
-- of an earlier move, that its mover did not replace yet.
local is_remainder = former and (former.moved ~= '' or (former.leaving ~= '' and (tonumber(former.moves) or 0) < move))
if former and not is_remainder then return 'here' end
if refuses then
  redis.call('SET', KEYS[2], move .. ' refused', 'PX', requeue.CAME_TTL_MS)
  return 'refused'
end
local version = redis.call('HGET', keys.queue(queue, 'meta'), 'version')
if not version then return 'unknown' end

local r, fields, events = setmetatable({}, records.EMPTY), {}, {}
for i = 11, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if field == '' then
    events[#events + 1] = value
  else
    r[field] = value
    if not NOT_BROUGHT[field] then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
end
local account = r.account
r.queue, r.mid, r.token, r.charged = queue, '', '', ''
r.arrival = tonumber(r.arrival) - requeue.OLDER

if ARGV[9] ~= '0' then requeue.take_over_limits(queue, account, ARGV[7], ARGV[8], ARGV[9]) end
redis.call('SET', KEYS[2], move .. ' here', 'PX', requeue.CAME_TTL_MS)
if former then redis.call('ZREM', keys.queue(former.queue, 'leaving'), id) end
redis.call('UNLINK', KEYS[1], keys.events(id))
redis.call('SET', keys.input(id), input)
records.append(id, events)
if held ~= '' then redis.call('SET', KEYS[3], held, 'PX', held_ttl, 'NX') end
local placed = requeue.put_in(id, r, r.due, records.since(r))
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('HSET', KEYS[1], 'queue', queue, 'version', version, 'token', '', 'arrival', string.format('%d', r.arrival), unpack(placed))
log.write('moved', id, queue, account, now, queue)
-- its caller canceled it here while it was away, and no mover passed that on
if former and former.moved == '' and former.cancel == 'user' then ends.end_now(id, records.read(id), 'canceled', {}, now) end
return 'here'
