#!lua flags=allow-oom
-- sample: note a queue's state once per period, with its counts since the last sample. The first keeper of a period does
-- it. An idle queue is noted idle once and then costs no write.
--
--   KEYS[1]  meta       hash  {p}:q:<queue>:meta
--   ARGV[1]  period_ms  between two samples
--   ARGV[2]  most       samples that are kept
--   Returns  1  the queue is busy or was recently: more samples will follow
--            0  it is idle, or not registered
--
-- A sample is one line: its time, waiting per lane, claimed, delayed, age of the oldest, late (waiting past the objective,
-- per lane), and then the counts since the sample before, in the order of COUNTED.
-- meta: sampled     when, whether it was busy, and the counters as they were then
--       slots_each  slots per director, kept while none is ready
--
-- uses keys:     ALIVE_MS, QUEUE, clock, queue
-- uses share:    LANES
-- uses outlook:  look_at, waits_in

local meta, queue, period_ms, most, now = KEYS[1], keys.QUEUE, tonumber(ARGV[1]), tonumber(ARGV[2]), keys.clock(ARGV[3])
local COUNTED = { 'accepted:high', 'accepted:normal', 'accepted:low', 'started', 'ended', 'waited_ms',
  'met:high', 'met:normal', 'met:low', 'missed:high', 'missed:normal', 'missed:low' }
local LOOK_AT = 64

local kept = redis.call('HMGET', meta, 'streams', 'sampled', 'slots_each', 'within:high', 'within:normal', 'within:low')
if not kept[1] then return 0 end
local before = {}
for number in string.gmatch(kept[2] or '', '%S+') do before[#before + 1] = tonumber(number) end
local at, was_busy = before[1] or 0, before[2] == 1
-- but not if the clock went back far in a failover: else there would be no sample until it has caught up
local is_noted = math.floor(now / period_ms) <= math.floor(at / period_ms) and at - now < 6 * period_ms
if is_noted then return was_busy and 1 or 0 end

local counters, since, has_counted = redis.call('HMGET', keys.queue(queue, 'tally'), unpack(COUNTED)), {}, false
for i = 1, #COUNTED do
  counters[i] = tonumber(counters[i] or 0)
  since[i] = counters[i] - (before[2 + i] or 0)
  if since[i] < 0 then since[i] = counters[i] end -- they were lost and restarted
  has_counted = has_counted or since[i] > 0
end
local live = redis.call('ZCARD', keys.queue(queue, 'live'))
local is_busy = live > 0 or has_counted
if not is_busy and not was_busy then return 0 end

local m = outlook.look_at(queue, 'normal')
local waits = {}
for i, lane in ipairs(share.LANES) do waits[i] = outlook.waits_in(m, lane) end

-- Waiting predictions past their lane's objective. `live` knows no lanes or claims, so this is a lower bound: claims and
-- retries that back off count as old, and the lanes that are served last have the oldest. What is planned is younger than now.
local delayed, planned = redis.call('ZCARD', keys.queue(queue, 'delayed')), redis.call('ZCOUNT', keys.queue(queue, 'live'), '(' .. now, '+inf')
local function late_per_lane()
  local late, taken = { 0, 0, 0 }, outlook.waits_in(m, 'idle') + math.max(0, delayed - planned)
  for i = #share.LANES, 1, -1 do
    local within = tonumber(kept[3 + i])
    if within then
      local old = redis.call('ZCOUNT', keys.queue(queue, 'live'), '-inf', '(' .. (now - within)) - m.claimed - taken
      late[i] = math.min(waits[i], math.max(0, old))
    end
    taken = taken + (within and late[i] or waits[i])
  end
  return late
end

-- Mean slots of a ready director: the estimate while no director is ready.
local function slots_each()
  local sum, directors = 0, 0
  for _, alive in ipairs(redis.call('ZRANGEBYSCORE', keys.queue(queue, 'directors'), now - keys.ALIVE_MS, now + keys.ALIVE_MS, 'LIMIT', 0, LOOK_AT)) do
    local slots = string.match(redis.call('HGET', keys.queue(queue, 'slots'), alive) or '', '^(%d+) ready$')
    if slots then sum, directors = sum + math.max(1, tonumber(slots)), directors + 1 end
  end
  return directors > 0 and string.format('%.2f', sum / directors) or kept[3]
end

local oldest = redis.call('ZRANGE', keys.queue(queue, 'live'), 0, 0, 'WITHSCORES')
local late = late_per_lane()
local line = { now, waits[1], waits[2], waits[3], m.claimed, delayed,
  oldest[2] and math.max(0, now - oldest[2]) or 0, late[1], late[2], late[3], unpack(since) }
for i, number in ipairs(line) do line[i] = string.format('%.0f', number) end
for i, number in ipairs(counters) do counters[i] = string.format('%.0f', number) end
local each = slots_each()

local samples = keys.queue(queue, 'samples')
redis.call('LPUSH', samples, table.concat(line, ' '))
redis.call('LTRIM', samples, 0, most - 1)
redis.call('PEXPIRE', samples, most * period_ms)
redis.call('HSET', meta, 'sampled', string.format('%.0f %d ', now, is_busy and 1 or 0) .. table.concat(counters, ' '))
if each and each ~= kept[3] then redis.call('HSET', meta, 'slots_each', each) end
return is_busy and 1 or 0
