#!lua flags=allow-oom
-- unregister: forget an empty queue that no director serves. Records of ended predictions live on.
--
--   KEYS[1]  meta  hash  {p}:q:<queue>:meta
--   ARGV[1]  only_asks  '1': only return the answer
--   Returns  'done'    also if it was not registered
--            'live'    a prediction is not terminal: nothing was written
--            'dead'    dead letters wait there for an operator: nothing was written
--            'served'  a director serves it: nothing was written
--
-- uses keys:     QUEUE, clock, queue, stream
-- uses share:    ALL_LANES

local meta, queue, only_asks, now = KEYS[1], keys.QUEUE, ARGV[1] == '1', keys.clock(ARGV[2])

local MOST_STREAMS = 32
local SERVED_MS = 60000 -- a director silent for longer does not serve it, nor one whose heartbeat is as far ahead

if not redis.call('HGET', meta, 'read') then return 'done' end

local gone = { meta }
for _, lane in ipairs(share.ALL_LANES) do
  for number = 0, MOST_STREAMS - 1 do -- a resize to fewer leaves empty ones above those that are read
    gone[#gone + 1] = keys.stream(queue, lane, number)
    if redis.call('XLEN', gone[#gone]) > 0 then return 'live' end
  end
  gone[#gone + 1] = keys.queue(queue, 'vtime:' .. lane)
  gone[#gone + 1] = keys.queue(queue, 'debt:' .. lane)
  gone[#gone + 1] = keys.queue(queue, 'charged:' .. lane)
end
for _, index in ipairs({ 'live', 'lease', 'delayed', 'leaving' }) do
  if redis.call('EXISTS', keys.queue(queue, index)) == 1 then return 'live' end
end
if redis.call('EXISTS', keys.queue(queue, 'dead')) == 1 then return 'dead' end
if redis.call('ZCOUNT', keys.queue(queue, 'directors'), now - SERVED_MS, now + SERVED_MS) > 0 then return 'served' end
if only_asks then return 'done' end

for _, what in ipairs({ 'bell', 'last', 'queued', 'running', 'limits', 'held', 'suspended', 'hours', 'opens', 'slots', 'tally', 'samples', 'deadline', 'directors' }) do
  gone[#gone + 1] = keys.queue(queue, what)
end
redis.call('DEL', unpack(gone))
return 'done'
