#!lua flags=allow-oom
-- register: register a queue, or refresh its policy. Small, so that a director can start beside a full server.
-- Never changes the streams of a queue that exists: that is resize.
--
--   KEYS[1]  meta            hash  {p}:q:<queue>:meta
--   ARGV[1]  version         the version whose queue this is; another one under the same name is refused
--   ARGV[2]  streams         per lane, when the queue is new
--   ARGV[3]  size            of a shard, when the queue is new
--   ARGV[4…] field, value    of the policy: attempts, on_lost, backoff_ms, … as `Policy` has them; '' for no limit.
--                            Objectives as JSON, for display, and within:<lane>, ms until a new prediction should start
--   Returns  1  registered
--            0  the name belongs to another version: nothing was written
--
-- uses keys:     QUEUE, clock
-- uses breaker:  close

local meta, version, streams, size = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HGET', meta, 'version')
if known and known ~= version then return 0 end

if not known then redis.call('HSET', meta, 'version', version, 'streams', streams, 'read', streams, 'size', size) end
for i = 4, #ARGV, 2 do redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
-- an open breaker would stay open for ever: faults are no longer noted, and neither is its probe's
if redis.call('HGET', meta, 'breaker_after') == '0' then breaker.close(keys.QUEUE, keys.clock('')) end
return 1
