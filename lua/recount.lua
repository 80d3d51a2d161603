#!lua flags=allow-oom
-- recount: say how many bytes an account has that are older than what was counted of them: of predictions that wait for
-- long, of dead letters, of ended ones with an owed webhook, and of records that outlive their data. Each call replaces
-- what the last one said.
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
