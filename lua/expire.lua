#!lua flags=allow-oom
-- expire: end predictions that waited past their deadline or start limit, and notify directors of those that run past
-- their deadline.
--
--   KEYS[1]  deadline  zset  {p}:q:<queue>:deadline
--   ARGV[1]  limit     most looked at in this call
--   Returns  {ended, notified}
--
-- uses keys:     clock, kick, record
-- uses records:  TERMINAL, past, read, soonest
-- uses ends:     end_if_late

local limit, now = ARGV[1], keys.clock(ARGV[2])

local ended, told = 0, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], id)
  local r = records.read(id)
  if r and not records.TERMINAL[r.status] then
    if r.token == '' then
      if ends.end_if_late(id, r, now) then
        ended = ended + 1
      elseif records.soonest(r) then -- revived, or begun before: what it was listed for does not count any more
        redis.call('ZADD', KEYS[1], records.soonest(r), id)
      end
    elseif records.past(r.deadline, now) then
      if r.cancel == '' then redis.call('HSET', keys.record(id), 'cancel', 'deadline') end
      redis.call('PUBLISH', keys.kick(r.holder), id)
      told = told + 1
    elseif r.deadline ~= '' then -- it was claimed in time
      redis.call('ZADD', KEYS[1], r.deadline, id)
    end
  end
end
return { ended, told }
