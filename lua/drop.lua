#!lua flags=allow-oom
-- drop: let go of a dead letter: its data lives on as long as that of any prediction that has just ended.
-- Uses lib/keys
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  id
--   ARGV[2]  queue
--   Returns  1  dropped
--            0  it is no dead letter: nothing was written

local id, queue = ARGV[1], ARGV[2]

if not redis.call('ZSCORE', queue_key(queue, 'dead'), id) then return 0 end

redis.call('ZREM', queue_key(queue, 'dead'), id)
local data_ttl_ms = redis.call('HGET', KEYS[1], 'data_ttl_ms') or redis.call('HGET', queue_key(queue, 'meta'), 'data_ttl_ms')
for _, key in ipairs({ input_key(id), events_key(id) }) do redis.call('PEXPIRE', key, data_ttl_ms, 'LT') end
return 1
