#!lua flags=allow-oom
-- migrate: move the waiting and delayed predictions of one slice to another queue of the same model. Claimed predictions
-- stay, and so do those of accounts that an operator paused here.
--
--   KEYS[1]  live    zset  {p}:q:<queue>:live
--   ARGV[1]  to      the other queue
--   ARGV[2]  from    rank of the first id of this slice
--   ARGV[3]  most    ids in this slice
--   ARGV[4]  asks    '1': only return what would be moved
--   Returns  {next, moved, claimed, held}  next: rank that the next slice starts from, -1 after the last one
--                                          claimed, held: how many stay, by reason
--            {}                            the other queue is not registered

local live, queue, to, from, most = KEYS[1], QUEUE, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local only_asks, now = ARGV[4] == '1', clock(ARGV[5])

local version = redis.call('HGET', queue_key(to, 'meta'), 'version')
if not version then return {} end

local function move(id, r)
  local due, since = take_out(id, r)
  local limits = has_any(queue, 'limits') and redis.call('HGET', queue_key(queue, 'limits'), r.account)
  if limits then take_over_limits(to, r.account, string.match(limits, '^(%S+) (%S*) (%S+)$')) end
  r.queue, r.arrival = to, tonumber(r.arrival) - OLDER
  local placed = put_in(id, r, due, since)
  -- its caller's estimate was for the other queue, and a held response was for the former version
  redis.call('HSET', record_key(id), 'queue', to, 'version', version, 'arrival', string.format('%d', r.arrival),
    'place', '', 'eta50', '', 'eta90', '', 'waiter', '', unpack(placed))
  log('moved', id, queue, r.account, now, to)
end

local ids = redis.call('ZRANGE', live, from, from + most - 1)
local waiting_here, moved, claimed, held = {}, 0, 0, 0
for _, id in ipairs(ids) do
  local r = read(id)
  if r and not TERMINAL[r.status] and r.queue == queue then
    if r.token ~= '' then
      claimed = claimed + 1
    elseif has_any(queue, 'held') and redis.call('SISMEMBER', queue_key(queue, 'held'), r.account) == 1 then
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
