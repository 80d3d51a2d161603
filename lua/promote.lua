#!lua flags=allow-oom
-- promote: put due retries back in line, and wake a director when an open breaker may be tried. A retry that is due later
-- than any backoff was written before the clock went back: it is due too.
--
--   KEYS[1]  delayed  zset  {p}:q:<queue>:delayed
--   ARGV[1]  limit    most promoted in this call
--   Returns  how many were promoted

local queue, limit, now = QUEUE, ARGV[1], clock(ARGV[2])
local LEAST_MS = 60000 -- lower bound, for waits under a former policy and waits for a server without room

local m = redis.call('HMGET', queue_key(queue, 'meta'), 'breaker', 'open_until', 'cool_ms', 'backoff_cap_ms')

local promoted = 0
local function promote_all(ids)
  for _, id in ipairs(ids) do
    redis.call('ZREM', KEYS[1], id)
    local r = read(id)
    if r and not TERMINAL[r.status] and r.mid == '' then
      redis.call('HSET', record_key(id), unpack(file(id, r)))
      promoted = promoted + 1
    end
  end
end

promote_all(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit))
local too_late = now + math.max(LEAST_MS, tonumber(m[4] or 0))
if promoted == 0 then promote_all(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. too_late, '+inf', 'LIMIT', 0, limit)) end
if m[1] == 'open' and is_cool(m[2], m[3], now) then ring(queue) end
return promoted
