#!lua flags=allow-oom
-- forward: a host answers again: some of what waits for its next attempt there is due now, the soonest first.
-- Uses lib/keys
--
--   KEYS[1]  owed     zset  {p}:owed
--   KEYS[2]  owed_to  zset  {p}:owed:<host>  as deliver wrote it
--   ARGV[1]  limit    most that are looked at
--   ARGV[2]  now_ms   '' for the server's clock
--   Returns  how many are due now that were not

local limit, now = tonumber(ARGV[1]), clock(ARGV[2])

local found, moved = redis.call('ZRANGE', KEYS[2], 0, limit - 1, 'WITHSCORES'), 0
for i = 1, #found, 2 do
  local id, at = found[i], tonumber(found[i + 1])
  redis.call('ZREM', KEYS[2], id)
  -- due at another moment than deliver said, and a courier has it; not at all, and it is owed no more
  if tonumber(redis.call('ZSCORE', KEYS[1], id) or '') == at and at > now then
    redis.call('ZADD', KEYS[1], now, id)
    moved = moved + 1
  end
end
return moved
