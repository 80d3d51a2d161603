#!lua flags=allow-oom
-- retire: forget one director that has been silent for long and has nothing pending in any stream.
--
--   KEYS[1]  directors  zset  {p}:q:<queue>:directors
--   ARGV[1]  silent_ms
--   Returns  the forgotten consumer, '' for none
--
-- uses keys:     GROUP, QUEUE, clock, queue, stream
-- uses share:    ALL_LANES

local directors, queue, silent_ms, now = KEYS[1], keys.QUEUE, ARGV[1], keys.clock(ARGV[2])
local LOOKED_AT = 8 -- the longest silent; claims of silent ones are recovered soon, so none blocks the others

local read_from = tonumber(redis.call('HGET', keys.queue(queue, 'meta'), 'read') or 0)

-- The streams that may know this consumer; nil while one of them has an entry pending for it.
local function streams_without_pending(consumer)
  local streams = {}
  for _, lane in ipairs(share.ALL_LANES) do
    for number = 0, read_from - 1 do
      local stream = keys.stream(queue, lane, number)
      local found = redis.pcall('XPENDING', stream, keys.GROUP, '-', '+', 1, consumer)
      if not found.err then -- there is such a stream, and a group
        if #found > 0 then return nil end
        streams[#streams + 1] = stream
      end
    end
  end
  return streams
end

for _, consumer in ipairs(redis.call('ZRANGEBYSCORE', directors, '-inf', now - silent_ms, 'LIMIT', 0, LOOKED_AT)) do
  local streams = streams_without_pending(consumer)
  if streams then
    -- DELCONSUMER drops what is pending, which would never be delivered again: hence the look before
    for _, stream in ipairs(streams) do redis.call('XGROUP', 'DELCONSUMER', stream, keys.GROUP, consumer) end
    redis.call('ZREM', directors, consumer)
    redis.call('HDEL', keys.queue(queue, 'last'), consumer)
    redis.call('HDEL', keys.queue(queue, 'slots'), consumer)
    redis.call('DEL', keys.queue(queue, 'about:' .. consumer))
    return consumer
  end
end
return ''
