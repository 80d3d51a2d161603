#!lua flags=allow-oom
-- reap: take back claims whose lease ran out. The first retry is immediate: the lease was the wait.
-- Uses lib/keys lib/place lib/settle lib/requeue
--
--   KEYS[1]  lease     zset  {p}:q:<queue>:lease
--   ARGV[1]  limit     most claims taken back in this call
--   ARGV[2]  jitter    0..1, drawn by the caller: scripts must not roll dice
--   ARGV[3]  base_ms   of the backoff
--   ARGV[4]  cap_ms    of the backoff
--   ARGV[5]  now_ms    '' for the server's clock
--   Returns  id, what became of it, …   in requeue's words, or 'gone' where there was no claim any more

local limit, jitter, base_ms, cap_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock(ARGV[5])

local reaped = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  local r = read(id)
  reaped[#reaped + 1] = id
  if not r or TERMINAL[r.status] or r.token == '' then
    redis.call('ZREM', KEYS[1], id)
    reaped[#reaped + 1] = 'gone'
  else
    local attempt, delay_ms = tonumber(r.attempt), 0
    if attempt > 1 then delay_ms = math.floor(jitter * math.min(cap_ms, base_ms * 2 ^ (attempt - 1))) end
    reaped[#reaped + 1] = requeue(id, r, {
      spent = true, delay_ms = delay_ms, code = 'director_lost',
      error = 'The director that ran it went silent, and no attempt is left.',
    }, now)
  end
end
return reaped
