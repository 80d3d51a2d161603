#!lua flags=allow-oom
-- promote: put due retries back in line, and wake a director when an open breaker may be tried. A retry that is due later
-- than any backoff was written before the clock went back: it is due too.
--
--   KEYS[1]  delayed  zset  {p}:q:<queue>:delayed
--   ARGV[1]  limit    most promoted in this call
--   Returns  how many were promoted
--
-- uses keys:     QUEUE, clock, queue, record
-- uses records:  TERMINAL, read
-- uses ready:    ring
-- uses share:    file_now
-- uses breaker:  is_cool

local queue, limit, now = keys.QUEUE, ARGV[1], keys.clock(ARGV[2])
local LEAST_MS = 60000 -- lower bound, for waits under a former policy and waits for a server without room

local m = redis.call('HMGET', keys.queue(queue, 'meta'), 'breaker', 'open_until', 'cool_ms', 'backoff_cap_ms')

local promoted = 0
local function promote_all(ids)
  for _, id in ipairs(ids) do
    redis.call('ZREM', KEYS[1], id)
    local r = records.read(id)
    if r and not records.TERMINAL[r.status] and r.mid == '' then
      redis.call('HSET', keys.record(id), unpack(share.file_now(id, r)))
      promoted = promoted + 1
    end
  end
end

promote_all(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit))
local too_late = now + math.max(LEAST_MS, tonumber(m[4] or 0))
if promoted == 0 then promote_all(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. too_late, '+inf', 'LIMIT', 0, limit)) end
if m[1] == 'open' and breaker.is_cool(m[2], m[3], now) then ready.ring(queue) end
return promoted
