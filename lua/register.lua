#!lua flags=allow-oom
-- register: register a queue, or refresh its policy. Small, so that a director can start beside a full server.
-- Never changes the streams of a queue that exists: that is resize.
-- Uses lib/keys lib/place lib/breaker
--
--   KEYS[1]  meta            hash  {p}:q:<queue>:meta
--   ARGV[1]  version         the version whose queue this is; another one under the same name is refused
--   ARGV[2]  streams         per lane, when the queue is new
--   ARGV[3]  size            of a shard, when the queue is new
--   ARGV[4]  attempts        before a prediction becomes a dead letter
--   ARGV[5]  on_lost         'retry', or 'fail' if a run must not happen twice: a begun run is never put back
--   ARGV[6]  backoff_ms      before the third attempt at most twice that, then doubling …
--   ARGV[7]  backoff_cap_ms  … up to that
--   ARGV[8]  data_ttl_ms     life of input, output, logs and events after the end
--   ARGV[9]  record_ttl_ms   life of the record after the end
--   ARGV[10] lifetime_ms     of a prediction from its creation, '' for as long as it takes
--   ARGV[11] breaker_after   faults of the servers in a row that open the breaker, 0 for never
--   ARGV[12] breaker_cool_ms until one may try again
--   ARGV[13] breaker_mode    'hold', or 'fail' to refuse new work while it is open
--   ARGV[14] objectives      as JSON, for display, '' for none
--   ARGV[15] high_ms         the objective of each lane: time until a new prediction should start, '' for none
--   ARGV[16] normal_ms
--   ARGV[17] low_ms
--   Returns  1  registered
--            0  the name belongs to another version: nothing was written

local meta, version, streams, size = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HGET', meta, 'version')
if known and known ~= version then return 0 end

if not known then redis.call('HSET', meta, 'version', version, 'streams', streams, 'read', streams, 'size', size) end
redis.call('HSET', meta, 'attempts', ARGV[4], 'on_lost', ARGV[5], 'backoff_ms', ARGV[6], 'backoff_cap_ms', ARGV[7],
  'data_ttl_ms', ARGV[8], 'record_ttl_ms', ARGV[9], 'lifetime_ms', ARGV[10],
  'breaker_after', ARGV[11], 'breaker_cool_ms', ARGV[12], 'breaker_mode', ARGV[13],
  'objectives', ARGV[14], 'within:high', ARGV[15], 'within:normal', ARGV[16], 'within:low', ARGV[17])
-- an open breaker would stay open for ever: faults are no longer noted, and neither is its probe's
if ARGV[11] == '0' then close_breaker(string.match(meta, ':q:(.+):meta$'), clock('')) end
return 1
