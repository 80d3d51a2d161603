#!lua flags=allow-oom
-- expire: end predictions that waited past their deadline or start limit, and notify directors of those that run past
-- their deadline.
--
--   KEYS[1]  deadline  zset  {p}:q:<queue>:deadline
--   ARGV[1]  limit     most looked at in this call
--   Returns  {ended, notified}

local limit, now = ARGV[1], clock(ARGV[2])

local ended, told = 0, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], id)
  local r = read(id)
  if r and not TERMINAL[r.status] then
    if r.token == '' then
      if end_if_late(id, r, now) then
        ended = ended + 1
      elseif soonest(r) then -- revived, or begun before: what it was listed for does not count any more
        redis.call('ZADD', KEYS[1], soonest(r), id)
      end
    elseif past(r.deadline, now) then
      if r.cancel == '' then redis.call('HSET', record_key(id), 'cancel', 'deadline') end
      redis.call('PUBLISH', kick_channel(r.holder), id)
      told = told + 1
    elseif r.deadline ~= '' then -- it was claimed in time
      redis.call('ZADD', KEYS[1], r.deadline, id)
    end
  end
end
return { ended, told }
