#!lua flags=allow-oom
-- recount: say how many bytes an account has that outlive what was counted of them. These are bytes of predictions that
-- wait for long, of dead letters, of ended predictions with an owed webhook, and of records without data. Each call replaces
-- the figure of the last call.
--
--   KEYS[1]  data      hash  {a:<account>}:data     see lib/data
--   ARGV[1]  bytes     0 for none
--   ARGV[2]  until_ms  when that is forgotten, if no call follows
--   Returns  1

if tonumber(ARGV[1]) > 0 then
  redis.call('HSET', KEYS[1], 'old', ARGV[1] .. ' ' .. ARGV[2])
  tidy_data(KEYS[1], clock(ARGV[3]))
else
  redis.call('HDEL', KEYS[1], 'old')
end
return 1
