#!lua flags=allow-oom
-- forward: make webhooks due now that wait for a host which answers again, the soonest first.
--
--   KEYS[1]  owed_to  zset  {p}:owed:<host>  as deliver wrote it
--   ARGV[1]  limit    most webhooks that are looked at
--   Returns  the number of webhooks that became due

local limit, now = tonumber(ARGV[1]), clock(ARGV[2])

local found, forwarded = redis.call('ZRANGE', KEYS[1], 0, limit - 1, 'WITHSCORES'), 0
for i = 1, #found, 2 do
  local id, at = found[i], tonumber(found[i + 1])
  redis.call('ZREM', KEYS[1], id)
  -- with another due time than deliver wrote, a courier has it; without one, it is no longer owed
  if tonumber(redis.call('ZSCORE', owed_key(), id) or '') == at and at > now then
    redis.call('ZADD', owed_key(), now, id)
    forwarded = forwarded + 1
  end
end
return forwarded
