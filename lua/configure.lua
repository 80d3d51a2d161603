#!lua
-- configure: write or remove a model's configuration, unless it changed since its writer read it.
--
--   KEYS[1]  model   hash  model:<owner>/<name>
--   ARGV[1]  was     the revision that its writer read, '' for any
--   ARGV[2]  config  as directors read it, '' to take it back
--   ARGV[3]  by      who writes it
--   ARGV[4]  at_ms   when
--   ARGV[5]  nonce   of this change, so that a repeated call gets the same answer
--   Returns  {'done', revision}     it never falls, also when the configuration is taken back
--            {'changed', revision}  another writer was faster: nothing was written
--            {'unknown'}            there is no such model

local model, was, config, by, at_ms, nonce = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local m = redis.call('HMGET', model, 'created', 'config_rev', 'config_nonce')
if not m[1] then return { 'unknown' } end
local revision = tonumber(m[2] or 0)
if m[3] == nonce then return { 'done', revision } end
if was ~= '' and tonumber(was) ~= revision then return { 'changed', revision } end

redis.call('HSET', model, 'config', config, 'config_rev', revision + 1, 'config_by', by, 'config_at', at_ms, 'config_nonce', nonce)
return { 'done', revision + 1 }
