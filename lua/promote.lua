#!lua flags=allow-oom
-- promote: put retries that are due back into their streams.
-- Uses lib/keys lib/place
--
--   KEYS[1]  delayed  zset  {p}:q:<queue>:delayed
--   ARGV[1]  limit    most promoted in this call
--   ARGV[2]  now_ms   '' for the server's clock
--   Returns  how many were promoted

local limit, now = ARGV[1], clock(ARGV[2])

local promoted = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], id)
  local r = read(id)
  if r and not TERMINAL[r.status] and r.mid == '' then
    local stream, mid = place(id, r)
    redis.call('HSET', record_key(id), 'stream', stream, 'mid', mid)
    promoted = promoted + 1
  end
end
return promoted
