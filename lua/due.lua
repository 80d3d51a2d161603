#!lua flags=allow-oom
-- due: take terminal webhooks whose next attempt is due, so that no other courier takes them meanwhile.
--
--   KEYS[1]  owed     zset  {p}:owed
--   ARGV[1]  limit    most taken in this call
--   ARGV[2]  hold_ms  time to deliver them before they are due again
--   Returns  ids
--
-- uses keys:     clock

local limit, hold_ms, now = ARGV[1], ARGV[2], keys.clock(ARGV[3])

local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)
for _, id in ipairs(ids) do redis.call('ZADD', KEYS[1], 'XX', now + hold_ms, id) end
return ids
