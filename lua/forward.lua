#!lua flags=allow-oom
-- forward: make webhooks due now that wait for a host which answers again, the soonest first.
-- Uses lib/keys
--
--   KEYS[1]  owed     zset  {p}:owed
--   KEYS[2]  owed_to  zset  {p}:owed:<host>  as deliver wrote it
--   ARGV[1]  limit    most webhooks that are looked at
--   ARGV[2]  now_ms   '' for the server's clock
--   Returns  the number of webhooks that became due

local limit, now = tonumber(ARGV[1]), clock(ARGV[2])

local found, moved = redis.call('ZRANGE', KEYS[2], 0, limit - 1, 'WITHSCORES'), 0
for i = 1, #found, 2 do
  local id, at = found[i], tonumber(found[i + 1])
  redis.call('ZREM', KEYS[2], id)
  -- with another due time than deliver wrote, a courier has it; without one, it is no longer owed
  if tonumber(redis.call('ZSCORE', KEYS[1], id) or '') == at and at > now then
    redis.call('ZADD', KEYS[1], now, id)
    moved = moved + 1
  end
end
return moved
