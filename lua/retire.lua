#!lua flags=allow-oom
-- retire: forget one director that has been silent for long, once nothing is pending for it in any stream.
-- Uses lib/keys
--
--   KEYS[1]  directors  zset  {p}:q:<queue>:directors
--   ARGV[1]  queue
--   ARGV[2]  silent_ms
--   ARGV[3]  now_ms     '' for the server's clock
--   Returns  the consumer that is forgotten, '' when there is none

local directors, queue, silent_ms, now = KEYS[1], ARGV[1], ARGV[2], clock(ARGV[3])

local consumer = redis.call('ZRANGEBYSCORE', directors, '-inf', now - silent_ms, 'LIMIT', 0, 1)[1]
if not consumer then return '' end
local streams = {}
for _, lane in ipairs({ 'high', 'normal', 'low' }) do
  for number = 0, redis.call('HGET', queue_key(queue, 'meta'), 'read') - 1 do
    local stream = stream_key(queue, lane, number)
    local pending = redis.pcall('XPENDING', stream, GROUP, '-', '+', 1, consumer)
    if not pending.err then -- there is such a stream, and a group
      -- DELCONSUMER would drop what is pending: it would never be delivered again
      if #pending > 0 then
        redis.call('ZADD', directors, now, consumer) -- look again later, at others first
        return ''
      end
      streams[#streams + 1] = stream
    end
  end
end

for _, stream in ipairs(streams) do redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, consumer) end
redis.call('ZREM', directors, consumer)
redis.call('HDEL', queue_key(queue, 'last'), consumer)
return consumer
