#!lua flags=allow-oom
-- weigh: count what predictions of an account left behind at their end, where `enlist` could not know of it. That is much
-- output, or an end so late that their data lives longer than was counted. Or what `retain` counted is gone: that
-- counts no longer, also while Redis is full. A call whose reply was lost may count twice, until then.
--
--   of each item, in the form of lib/batch; all are of one account:
--   KEYS[1]  data  hash  {a:<account>}:data     see lib/data
--   ARGV[1]  counts_bytes         all that count from now on, 0 for none
--   ARGV[2]  counts_until_ms      when they expire
--   ARGV[3]  instead_of_bytes     bytes that `enlist` or `retain` counted, 0 for none
--   ARGV[4]  instead_of_until_ms  when those expire
--   ARGV[5]  now_ms               '' for the server's clock
--   Returns  for each item 1
--
-- uses data:     count, discount
-- uses batch:    each

local function weigh(key, arg)
  local hash, bytes, counted = KEYS[key + 1], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 3])
  if counted > 0 then data.discount(hash, ARGV[arg + 4], counted) end
  if bytes > 0 then data.count(hash, ARGV[arg + 2], bytes, ARGV[arg + 5]) end
  return 1
end

return batch.each(1, weigh, function() end)
