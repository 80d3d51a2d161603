-- lib/ready: the streams of a queue: put an entry into the least waiting one of its shard, find work, wake a consumer.
--
-- uses keys:     queue, stream

-- Entries that were not delivered yet. Not XLEN, which also counts claimed ones.
function ready.count_waiting(stream)
  local length = redis.call('XLEN', stream)
  if length == 0 then return 0 end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for i = 1, #group, 2 do
      if group[i] == 'pending' then return length - group[i + 1] end
    end
  end
  return length
end

-- The same, counted once: a script runs alone, and updates the number itself.
ready.known_waiting = {}
function ready.waiting_in(stream)
  if not ready.known_waiting[stream] then ready.known_waiting[stream] = ready.count_waiting(stream) end
  return ready.known_waiting[stream]
end

-- The last entry that was handed out, '0-0' before the first.
function ready.delivered(stream)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' then return group[i + 1] end
    end
  end
  return '0-0'
end

-- The number of the first stream at or after `from` that may hold work; the mask must not be empty.
function ready.next_set(mask, from)
  while bit.band(mask, bit.lshift(1, from)) == 0 do from = (from + 1) % 32 end
  return from
end

-- The result of bit.* is signed: stream 31 would make a mask negative, and it would be read as another mask.
function ready.with_bit(mask, number) return bit.bor(mask, bit.lshift(1, number)) % 4294967296 end
function ready.without_bit(mask, number) return bit.band(mask, bit.bnot(bit.lshift(1, number))) % 4294967296 end

function ready.mask_of(queue, lane)
  return tonumber(redis.call('HGET', keys.queue(queue, 'meta'), 'mask:' .. lane) or 0)
end

-- Write a wakeup. Its lifetime only clears queues without a director: a lost wakeup costs one safety poll.
ready.has_rung = {}
function ready.ring(queue)
  if ready.has_rung[queue] then return end
  ready.has_rung[queue] = true
  local bell = keys.queue(queue, 'bell')
  if redis.call('EXISTS', bell) == 0 then
    redis.call('LPUSH', bell, '1')
    redis.call('PEXPIRE', bell, 60000)
  end
end

-- Make claims look into this stream. `mask`: the current one.
function ready.offer(queue, lane, number, mask)
  local offered = ready.with_bit(mask, number)
  if offered ~= mask then redis.call('HSET', keys.queue(queue, 'meta'), 'mask:' .. lane, offered) end
  ready.ring(queue)
end

-- The stream of its account's shard with the fewest waiting. `look`: from share.look_at_lane; it keeps the answer.
function ready.choose_stream(r, look)
  if look.number then return look.number end
  local least
  for number in string.gmatch(r.shard, '%d+') do
    number = number % look.streams -- a shard from before a resize may name a stream that takes no new work
    local depth = look.ready > 0 and ready.waiting_in(keys.stream(r.queue, r.lane, number)) or 0
    if not least or depth < least then look.number, least = number, depth end
  end
  return look.number
end

-- Returns the stream's number and the entry's id. The caller writes both into the record and makes claims look there.
function ready.add_entry(id, r, number)
  local stream = keys.stream(r.queue, r.lane, number)
  local mid = redis.call('XADD', stream, '*', 'id', id, 'cost', r.cost)
  if ready.known_waiting[stream] then ready.known_waiting[stream] = ready.known_waiting[stream] + 1 end
  return number, mid
end
