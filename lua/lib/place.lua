-- lib/place: put a prediction into the least waiting stream of its tenant's shard, and wake one consumer.

-- Entries that nobody was given yet. Not XLEN: that counts the claimed ones too.
local function waiting(stream)
  local length = redis.call('XLEN', stream)
  if length == 0 then return 0 end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for i = 1, #group, 2 do
      if group[i] == 'pending' then return length - group[i + 1] end
    end
  end
  return length
end

local function mask_of(queue, lane)
  return tonumber(redis.call('HGET', queue_key(queue, 'meta'), 'mask:' .. lane) or 0)
end

-- Its lifetime only tidies up after queues without a director: a lost token costs one safety poll.
local function ring(queue)
  local bell = queue_key(queue, 'bell')
  if redis.call('EXISTS', bell) == 0 then
    redis.call('LPUSH', bell, '1')
    redis.call('PEXPIRE', bell, 60000)
  end
end

-- Make sure that claims look into this stream.
local function offer(queue, lane, number)
  local mask = bit.bor(mask_of(queue, lane), bit.lshift(1, number)) % 4294967296
  redis.call('HSET', queue_key(queue, 'meta'), 'mask:' .. lane, mask)
  ring(queue)
end

-- Returns the stream's number and the entry's id; the caller writes both into the record.
local function place(id, r)
  local streams = tonumber(redis.call('HGET', queue_key(r.queue, 'meta'), 'streams'))
  local best, least
  for number in string.gmatch(r.shard, '%d+') do
    number = number % streams -- a shard from before a resize may name a stream that takes no new work
    local depth = waiting(stream_key(r.queue, r.lane, number))
    if not least or depth < least then best, least = number, depth end
  end
  local mid = redis.call('XADD', stream_key(r.queue, r.lane, best), '*', 'id', id, 'cost', r.cost)
  offer(r.queue, r.lane, best)
  return best, mid
end

-- Out of its stream for good. XACK alone would leave the entry for ever; XDEL alone its pending id.
local function unplace(r)
  if r.mid == '' then return end
  local stream = stream_key(r.queue, r.lane, r.stream)
  redis.call('XACK', stream, GROUP, r.mid)
  redis.call('XDEL', stream, r.mid)
end
