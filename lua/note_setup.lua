#!lua
-- note_setup: write how the last setup of a version's server went, if the version is in the catalogue. Not allow-oom:
-- what is written is text, and a full server refuses it.
--
--   KEYS[1]  version    hash  version:<owner>/<name>:<id>
--   ARGV[1]  setup_run  as operators and the API read it; replaces the one before
--   Returns  1  written
--            0  there is no such version: nothing was written

if redis.call('HEXISTS', KEYS[1], 'created') == 0 then return 0 end
redis.call('HSET', KEYS[1], 'setup_run', ARGV[1])
return 1
