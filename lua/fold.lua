#!lua flags=allow-oom
-- fold: add days of an account's old month in the ledger to the row of the whole month, and say how long that is kept. Safe
-- to repeat: a day that was added is gone.
--
--   KEYS[1]  ledger           hash  {p}:ledger:<yyyymm>:<account>
--   KEYS[2]  ledger_accounts  set   {p}:ledger:<yyyymm>
--   ARGV[1]  kept_ms  the lifetime of the month from now
--   ARGV[2…] day, month  fields: a row of a day, and that of the month which takes it in
--   Returns  rows that were added, and are gone
--
-- uses ledger:   add_to, packed

local key, kept_ms = KEYS[1], ARGV[1]

local sums, days = {}, {}
for i = 2, #ARGV, 2 do
  local row = redis.call('HGET', key, ARGV[i])
  if row then
    days[#days + 1] = ARGV[i]
    sums[ARGV[i + 1]] = sums[ARGV[i + 1]] or {}
    ledger.add_to(sums[ARGV[i + 1]], row)
  end
end
if #days > 0 then
  local months = {}
  for field, counted in pairs(sums) do
    ledger.add_to(counted, redis.call('HGET', key, field) or '')
    months[#months + 1], months[#months + 2] = field, ledger.packed(counted)
  end
  redis.call('HSET', key, unpack(months))
  redis.call('HDEL', key, unpack(days))
end
redis.call('PEXPIRE', key, kept_ms)
redis.call('PEXPIRE', KEYS[2], kept_ms)
return #days
