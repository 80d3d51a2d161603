#!lua flags=allow-oom
-- recount: say how many bytes an account has that outlive what was counted of them. These are bytes of predictions that
-- wait for long, of dead letters, of ended predictions with an owed webhook, and of records without data. Each call replaces
-- the figure of the last call. What has no end is measured too, and its sum is set right.
--
--   KEYS[1]  data  hash  {a:<account>}:data     see lib/data
--   ARGV[1]  size          bytes, 0 for none
--   ARGV[2]  until_ms      when that is forgotten, if no call follows
--   ARGV[3]  retained      bytes that have no end, see retain
--   ARGV[4]  was_retained  as they were counted before they were measured: else they changed meanwhile, and may only become
--                      more. The next pass measures them again
--   ARGV[5]  for_ever_ms   their bucket
--   Returns  1
--
-- uses keys:     clock
-- uses data:     tidy

local retained, is = tonumber(ARGV[3]), tonumber(redis.call('HGET', KEYS[1], ARGV[5]) or 0)
-- A change in each pass must not keep an error for ever. A difference would be added twice by two keepers.
if is ~= tonumber(ARGV[4]) then retained = math.max(is, retained) end
if retained > 0 then
  redis.call('HSET', KEYS[1], ARGV[5], string.format('%d', retained))
else
  redis.call('HDEL', KEYS[1], ARGV[5])
end
if tonumber(ARGV[1]) > 0 then
  redis.call('HSET', KEYS[1], 'old', ARGV[1] .. ' ' .. ARGV[2])
else
  redis.call('HDEL', KEYS[1], 'old')
end
data.tidy(KEYS[1], keys.clock(ARGV[6]))
return 1
