#!lua flags=allow-oom
-- promote: put retries that are due back in line, and wake a director when an open breaker may be tried.
-- Uses lib/keys lib/place lib/estimate lib/share
--
--   KEYS[1]  delayed  zset  {p}:q:<queue>:delayed
--   ARGV[1]  queue
--   ARGV[2]  limit    most promoted in this call
--   ARGV[3]  now_ms   '' for the server's clock
--   Returns  how many were promoted

local queue, limit, now = ARGV[1], ARGV[2], clock(ARGV[3])

local promoted = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], id)
  local r = read(id)
  if r and not TERMINAL[r.status] and r.mid == '' then
    redis.call('HSET', record_key(id), unpack(file(id, r)))
    promoted = promoted + 1
  end
end
local breaker = redis.call('HMGET', queue_key(queue, 'meta'), 'breaker', 'open_until')
if breaker[1] == 'open' and past(breaker[2], now) then ring(queue) end
return promoted
