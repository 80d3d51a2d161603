-- lib/place: the streams of a queue: put an entry into the least waiting one of its shard, take it out, wake a consumer.
-- Needs lib/keys.

-- Entries that were not delivered yet. Not XLEN, which also counts claimed ones.
local function count_waiting(stream)
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
local waiting_in = {}
local function waiting(stream)
  if not waiting_in[stream] then waiting_in[stream] = count_waiting(stream) end
  return waiting_in[stream]
end

-- The last entry that was handed out, '0-0' before the first.
local function delivered(stream)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' then return group[i + 1] end
    end
  end
  return '0-0'
end

-- The number of the first stream at or after `from` that may hold work; the mask must not be empty.
local function next_set(mask, from)
  while bit.band(mask, bit.lshift(1, from)) == 0 do from = (from + 1) % 32 end
  return from
end

-- The result of bit.* is signed: stream 31 would make a mask negative, and it would be read as another mask.
local function with_bit(mask, number) return bit.bor(mask, bit.lshift(1, number)) % 4294967296 end
local function without_bit(mask, number) return bit.band(mask, bit.bnot(bit.lshift(1, number))) % 4294967296 end

local function mask_of(queue, lane)
  return tonumber(redis.call('HGET', queue_key(queue, 'meta'), 'mask:' .. lane) or 0)
end

-- Write a wakeup. Its lifetime only clears queues without a director: a lost wakeup costs one safety poll.
local has_rung = {}
local function ring(queue)
  if has_rung[queue] then return end
  has_rung[queue] = true
  local bell = queue_key(queue, 'bell')
  if redis.call('EXISTS', bell) == 0 then
    redis.call('LPUSH', bell, '1')
    redis.call('PEXPIRE', bell, 60000)
  end
end

-- Make claims look into this stream. `mask`: the current one.
local function offer(queue, lane, number, mask)
  local offered = with_bit(mask, number)
  if offered ~= mask then redis.call('HSET', queue_key(queue, 'meta'), 'mask:' .. lane, offered) end
  ring(queue)
end

-- Removals from streams and indexes of the queue are gathered, and written at the script's end.
local leaving, gone, gone_from = {}, {}, {}
local function gather(lists, key, value)
  local list = lists[key]
  if list then
    list[#list + 1] = value
  else
    lists[key] = { value }
  end
end

-- XACK alone would leave an entry for ever; XDEL alone its pending id.
local function write_removals(queue)
  for stream, mids in pairs(leaving) do
    redis.call('XACK', stream, GROUP, unpack(mids))
    redis.call('XDEL', stream, unpack(mids))
    waiting_in[stream], leaving[stream] = nil, nil
  end
  if #gone == 0 then return end
  for index in pairs(gone_from) do redis.call('ZREM', queue_key(queue, index), unpack(gone)) end
  gone, gone_from = {}, {}
end

-- Counts for many predictions, and new values of the queue, are written once: at the script's end, and before any step that
-- reads them.
local uncounted = {}
local unset = {}
local function set_later(field, value)
  unset[#unset + 1] = field
  unset[#unset + 1] = value
end
local function count_later(what, field, by)
  local sums = uncounted[what]
  if not sums then
    sums = {}
    uncounted[what] = sums
  end
  sums[field] = (sums[field] or 0) + by
end

-- A counter of a tenant is removed at zero, so that a queue remembers only tenants with work.
local OF_TENANTS = { queued = true, running = true }
local function write_counts(queue)
  for what, sums in pairs(uncounted) do
    local key = queue_key(queue, what)
    for field, by in pairs(sums) do
      local sum = (by ~= 0 or what == 'tally') and redis.call('HINCRBY', key, field, by)
      if sum and sum <= 0 and OF_TENANTS[what] then redis.call('HDEL', key, field) end
      sums[field] = nil
    end
  end
  if #unset == 0 then return end
  redis.call('HSET', queue_key(queue, 'meta'), unpack(unset))
  unset = {}
end

local function counted(queue, what, tenant)
  local later = uncounted[what] and uncounted[what][tenant] or 0
  return tonumber(redis.call('HGET', queue_key(queue, what), tenant) or 0) + later
end

-- Count an entry that came into the streams, or left them because it was handed out or ended.
local function count_ready(r, by) count_later('meta', 'ready:' .. r.lane, by) end

-- The stream of its tenant's shard with the fewest waiting. `look`: from look_at_lane; it keeps the answer.
local function stream_for(r, look)
  if look.number then return look.number end
  local least
  for number in string.gmatch(r.shard, '%d+') do
    number = number % look.streams -- a shard from before a resize may name a stream that takes no new work
    local depth = look.ready > 0 and waiting(stream_key(r.queue, r.lane, number)) or 0
    if not least or depth < least then look.number, least = number, depth end
  end
  return look.number
end

-- Returns the stream's number and the entry's id. The caller writes both into the record and makes claims look there.
local function put(id, r, number)
  local stream = stream_key(r.queue, r.lane, number)
  local mid = redis.call('XADD', stream, '*', 'id', id, 'cost', r.cost)
  if waiting_in[stream] then waiting_in[stream] = waiting_in[stream] + 1 end
  return number, mid
end
