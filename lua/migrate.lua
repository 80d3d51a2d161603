#!lua flags=allow-oom
-- migrate: move the waiting and delayed predictions of one slice to another queue of the same model. Claimed predictions
-- stay, and so do those of accounts that an operator paused here.
--
--   KEYS[1]  live  zset  {p}:q:<queue>:live
--   ARGV[1]  to         the other queue
--   ARGV[2]  start      rank of the first id of this slice
--   ARGV[3]  count      ids in this slice
--   ARGV[4]  only_asks  '1': only return what would be moved
--   Returns  {next, moved, claimed, held}  next: rank that the next slice starts from, -1 after the last one
--                                          claimed, held: how many stay, by reason
--            {}                            the other queue is not registered
--
-- uses keys:     QUEUE, clock, queue, record
-- uses records:  TERMINAL, read
-- uses log:      write
-- uses share:    has_any, write_hours
-- uses requeue:  OLDER, put_in, take_out, take_over_limits

local live, queue, to, from, most = KEYS[1], keys.QUEUE, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local only_asks, now = ARGV[4] == '1', keys.clock(ARGV[5])

local version = redis.call('HGET', keys.queue(to, 'meta'), 'version')
if not version then return {} end

local function move(id, r)
  local due, since = requeue.take_out(id, r)
  local limits = share.has_any(queue, 'limits') and redis.call('HGET', keys.queue(queue, 'limits'), r.account)
  if limits then requeue.take_over_limits(to, r.account, string.match(limits, '^(%S+) (%S*) (%S+)$')) end
  local hours = share.has_any(queue, 'hours') and redis.call('HGET', keys.queue(queue, 'hours'), r.account)
  if hours and redis.call('HEXISTS', keys.queue(to, 'hours'), r.account) == 0 then share.write_hours(to, r.account, hours) end
  r.queue, r.arrival = to, tonumber(r.arrival) - requeue.OLDER
  local placed = requeue.put_in(id, r, due, since)
  -- its caller's estimate was for the other queue, and a held response was for the former version
  redis.call('HSET', keys.record(id), 'queue', to, 'version', version, 'arrival', string.format('%d', r.arrival),
    'place', '', 'eta50', '', 'eta90', '', 'waiter', '', unpack(placed))
  log.write('moved', id, queue, r.account, now, to)
end

local ids = redis.call('ZRANGE', live, from, from + most - 1)
local waiting_here, moved, claimed, held = {}, 0, 0, 0
for _, id in ipairs(ids) do
  local r = records.read(id)
  if r and not records.TERMINAL[r.status] and r.queue == queue then
    if r.token ~= '' then
      claimed = claimed + 1
    elseif share.has_any(queue, 'held') and redis.call('SISMEMBER', keys.queue(queue, 'held'), r.account) == 1 then
      held = held + 1
    else
      waiting_here[#waiting_here + 1] = { id, r }
    end
  end
end
-- within one ms `live` orders by id, but turns go by arrival
table.sort(waiting_here, function(one, other) return tonumber(one[2].arrival) < tonumber(other[2].arrival) end)
for _, each in ipairs(waiting_here) do
  moved = moved + 1
  if not only_asks then move(each[1], each[2]) end
end
local following = #ids == most and from + #ids - (only_asks and 0 or moved) or -1
return { following, moved, claimed, held }
