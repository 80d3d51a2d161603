#!lua flags=allow-oom
-- delist: take a prediction off its account's list, because it was refused or deleted; or a file. What `enlist` counted of it
-- counts no longer, if the caller says what that was. Safe to repeat: only what is on the list is taken off.
--
--   KEYS[1]  listing  zset  {a:<account>}:listing, or {a:<account>}:files
--   KEYS[2]  data     hash  {a:<account>}:data     see lib/data
--   ARGV[1]  name              the id
--   ARGV[2]  counted_bytes     that `enlist` counted of it, 0 to leave them
--   ARGV[3]  counted_until_ms  as `enlist` had it
--   ARGV[4]  lasting_bytes     as `enlist` had it
--   ARGV[5]  lasting_until_ms  as `enlist` had it
--   Returns  1 if it was on the list, else 0
--
-- uses data:     discount

local is_off, bytes, lasting = redis.call('ZREM', KEYS[1], ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
if is_off == 1 and bytes > 0 then data.discount(KEYS[2], ARGV[3], bytes) end
if is_off == 1 and lasting > 0 then data.discount(KEYS[2], ARGV[5], lasting) end
return is_off
