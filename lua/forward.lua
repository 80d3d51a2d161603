#!lua flags=allow-oom
-- forward: make webhooks of one account due now that a host missed which answers again, the soonest first. Their records
-- say so: an attempt that was brought forward takes no step of the schedule. At most 6 commands for each.
--
--   KEYS[1]  away   zset  {p}:away:<account>:<host>  as deliver wrote it
--   ARGV[1]  limit  most webhooks that are looked at
--   Returns  the number of webhooks that became due
--
-- uses keys:     clock, owed, record

local limit, now = tonumber(ARGV[1]), keys.clock(ARGV[2])

local found, forwarded = redis.call('ZRANGE', KEYS[1], 0, limit - 1, 'WITHSCORES'), 0
for i = 1, #found, 2 do
  local id, at = found[i], tonumber(found[i + 1])
  redis.call('ZREM', KEYS[1], id)
  -- with another due time than deliver wrote, a courier has it; without one, it is no longer owed
  local r = redis.call('HMGET', keys.record(id), 'next_telling', 'forwarded')
  if tonumber(r[1] or '') == at and tonumber(redis.call('ZSCORE', keys.owed(), id) or '') == at and at > now then
    redis.call('ZADD', keys.owed(), now, id)
    if r[2] ~= '0' then redis.call('HSET', keys.record(id), 'forwarded', r[1]) end -- '0': put off, so it is late as it is
    forwarded = forwarded + 1
  end
end
return forwarded
