#!lua
-- register: make a queue known, or refresh its policy. Never changes the streams of one that exists: that is resize.
-- Uses lib/keys
--
--   KEYS[1]  meta            hash  {p}:q:<queue>:meta
--   ARGV[1]  version         the version whose queue this is; another one under the same name is refused
--   ARGV[2]  streams         per lane, when the queue is new
--   ARGV[3]  size            of a shard, when the queue is new
--   ARGV[4]  attempts        before a prediction becomes a dead letter
--   ARGV[5]  data_ttl_ms     life of input, output, logs and events after the end
--   ARGV[6]  record_ttl_ms   life of the record after the end
--   Returns  1  registered
--            0  the name belongs to another version: nothing was written

local meta, version, streams, size = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local attempts, data_ttl_ms, record_ttl_ms = ARGV[4], ARGV[5], ARGV[6]

local known = redis.call('HGET', meta, 'version')
if known and known ~= version then return 0 end

if not known then redis.call('HSET', meta, 'version', version, 'streams', streams, 'read', streams, 'size', size) end
redis.call('HSET', meta, 'attempts', attempts, 'data_ttl_ms', data_ttl_ms, 'record_ttl_ms', record_ttl_ms)
return 1
