#!lua flags=allow-oom
-- reap: take back claims whose lease ran out, each as an attempt that was lost.
-- Uses lib/keys lib/log lib/place lib/estimate lib/share lib/breaker lib/settle lib/requeue
--
--   KEYS[1]  lease     zset  {p}:q:<queue>:lease
--   ARGV[1]  limit    most claims taken back in this call
--   ARGV[2]  jitter   0..1, drawn by the caller: scripts must not roll dice
--   ARGV[3]  now_ms   '' for the server's clock
--   Returns  id, what became of it, …   in requeue's words, or 'gone' where there was no claim any more

local limit, jitter, now = ARGV[1], tonumber(ARGV[2]), clock(ARGV[3])

local reaped = {}
for k, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  local r = read(id)
  reaped[#reaped + 1] = id
  if not r or TERMINAL[r.status] or r.token == '' then
    redis.call('ZREM', KEYS[1], id)
    reaped[#reaped + 1] = 'gone'
  else
    reaped[#reaped + 1] = requeue(id, r, { spent = true, lost = true, jitter = spread(jitter, k) }, now)
  end
end
return reaped
