#!lua flags=allow-oom
-- claim: hand out up to `count` waiting predictions to one consumer, each with a lease and a fencing token.
-- Ends dead work (canceled, past its deadline) on the way, at most 64 entries a call.
-- Uses lib/keys lib/place lib/settle
--
--   KEYS[1]  meta       hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  consumer
--   ARGV[3]  nonce      fresh for each call, kept when a call is repeated; token = nonce .. '-' .. index
--   ARGV[4]  count
--   ARGV[5]  lease_ms
--   ARGV[6]  claims     most claims one prediction may ever have, whoever gives them back
--   ARGV[7]  now_ms     '' for the server's clock
--   Returns  {state, {id, input, record as a flat list}, …}
--            state: 'ok', 'paused', or 'unknown' when nobody registered this queue

local meta, queue, consumer, nonce = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local count, lease_ms, claims, now = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), clock(ARGV[7])
-- 8 : 3 : 1, spread out; an empty lane's turn goes to the highest that has work
local TURNS = { 'high', 'high', 'normal', 'high', 'high', 'normal', 'high', 'high', 'low', 'high', 'high', 'normal' }
local LANES = { 'high', 'normal', 'low' }
local SCAN = 64

local function handed(id) return { id, redis.call('GET', input_key(id)), redis.call('HGETALL', record_key(id)) } end

local state = redis.call('HMGET', meta, 'streams', 'paused', 'turn',
  'mask:high', 'mask:normal', 'mask:low', 'next:high', 'next:normal', 'next:low')
if not state[1] then return { 'unknown' } end

-- The reply to this very call was lost: answer it again. Claims that were lost meanwhile are left out.
local last = redis.call('HGET', queue_key(queue, 'last'), consumer) or ''
if string.match(last, '^%S+') == nonce then
  local again = { 'ok' }
  for index, id in string.gmatch(last, ' (%d+):(%S+)') do
    if redis.call('HGET', record_key(id), 'token') == nonce .. '-' .. index then again[#again + 1] = handed(id) end
  end
  return again
end
if state[2] == '1' then return { 'paused' } end

local turn, mask, next_stream = tonumber(state[3] or 0), {}, {}
for i, lane in ipairs(LANES) do
  mask[lane], next_stream[lane] = tonumber(state[3 + i] or 0), tonumber(state[6 + i] or 0)
end
local scanned = 0

local function read_one(stream)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
  if reply and reply.err then -- NOGROUP: the first read, or the group was lost. From 0: entries are judged by record
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
  end
  if not reply then return nil end
  local entry = reply[1][2][1]
  return entry[1], entry[2][2]
end

-- May this entry be handed out? Settles or drops it where not.
local function runnable(id, r, stream, mid)
  if not r or TERMINAL[r.status] or r.mid ~= mid then
    redis.call('XACK', stream, GROUP, mid)
    redis.call('XDEL', stream, mid)
  elseif r.token ~= '' then
    return false -- claimed, only its pending entry was lost: its lease decides, not we
  elseif past(r.deadline, now) then
    settle_late(id, r, now)
  elseif r.begun == '' and past(r.start_by, now) then
    settle(id, r, 'failed', { error = 'It could not start in the time that was asked for.', code = 'start_by_exceeded' }, now)
  elseif redis.call('EXISTS', input_key(id)) == 0 then
    settle(id, r, 'failed', { error = 'Its input is gone.', code = 'input_lost' }, now)
  elseif tonumber(r.claims) >= claims then
    bury(id, r, { error = 'It was handed out too often without ever starting.', code = 'too_many_claims' }, now)
  else
    return true
  end
  return false
end

local function take(lane)
  while mask[lane] ~= 0 and scanned < SCAN do
    local number = next_stream[lane]
    while bit.band(mask[lane], bit.lshift(1, number)) == 0 do number = (number + 1) % 32 end
    local stream = stream_key(queue, lane, number)
    local mid, id = read_one(stream)
    if mid then
      scanned = scanned + 1
      next_stream[lane] = (number + 1) % 32
      local r = read(id)
      if runnable(id, r, stream, mid) then return id, r end
    else
      mask[lane] = bit.band(mask[lane], bit.bnot(bit.lshift(1, number))) % 4294967296
    end
  end
end

local function take_any()
  local preferred = TURNS[turn % #TURNS + 1]
  local id, r = take(preferred)
  for _, lane in ipairs(LANES) do
    if not id and lane ~= preferred then id, r = take(lane) end
  end
  return id, r
end

local reply, remembered = { 'ok' }, { nonce }
for index = 1, count do
  local id, r = take_any()
  if not id then break end
  turn = turn + 1
  redis.call('HSET', record_key(id), 'token', nonce .. '-' .. index, 'holder', consumer,
    'attempt', r.attempt + 1, 'claims', r.claims + 1, 'claimed', now)
  redis.call('ZADD', queue_key(queue, 'lease'), now + lease_ms, id)
  remembered[#remembered + 1] = index .. ':' .. id
  reply[#reply + 1] = handed(id)
end

redis.call('HSET', meta, 'turn', turn % #TURNS, 'mask:high', mask.high, 'mask:normal', mask.normal,
  'mask:low', mask.low, 'next:high', next_stream.high, 'next:normal', next_stream.normal, 'next:low', next_stream.low)
if #reply > 1 then redis.call('HSET', queue_key(queue, 'last'), consumer, table.concat(remembered, ' ')) end
-- The scan's bound may have stopped us with nothing to show: the rest is still claimable, so it rings too.
local left = mask.high + mask.normal + mask.low > 0
if left and (#reply > 1 or scanned >= SCAN) then ring(queue) end
return reply
