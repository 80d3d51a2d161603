#!lua flags=no-writes
-- stats: count what waits, runs, is delayed and dead in one queue, and its directors.
--
--   KEYS[1]  meta      hash  {p}:q:<queue>:meta
--   Returns  {high, normal, low, claimed, delayed, dead, live, oldest_ms, directors, streams, read, paused,
--             slots, service_ms, service_cost, mode, max_queued, breaker, starting, setup_failed, server_auth, leaving,
--             objectives, tally as a flat list}
--            counts waiting per lane; oldest_ms: how long ago the oldest live one was accepted; starting, setup_failed,
--            server_auth: directors in this state by their last heartbeat; leaving: on the way to another server
--            {}  the queue is not registered

local meta, queue, now = KEYS[1], QUEUE, clock(ARGV[1])

local m = redis.call('HMGET', meta, 'streams', 'read', 'paused', 'slots', 'service_ms', 'mode', 'max_queued', 'breaker', 'service_cost',
  'starting', 'setup_failed', 'objectives', 'server_auth')
if not m[1] then return {} end
local counts = {}
for i, lane in ipairs(LANES) do
  counts[i] = math.max(0, tonumber(redis.call('HGET', meta, 'backlogged:' .. lane) or 0))
  -- where no claim would look, nothing waits; asking each of 48 streams is most of the cost
  for _, deep in pairs(depths(queue, lane, mask_of(queue, lane))) do counts[i] = counts[i] + deep end
end
for _, index in ipairs({ 'lease', 'delayed', 'dead', 'live' }) do
  counts[#counts + 1] = redis.call('ZCARD', queue_key(queue, index))
end
local oldest = redis.call('ZRANGE', queue_key(queue, 'live'), 0, 0, 'WITHSCORES')
counts[#counts + 1] = oldest[2] and now - oldest[2] or 0
counts[#counts + 1] = redis.call('ZCOUNT', queue_key(queue, 'directors'), now - ALIVE_MS, now + ALIVE_MS)
counts[#counts + 1] = tonumber(m[1])
counts[#counts + 1] = tonumber(m[2])
counts[#counts + 1] = m[3] == '1' and 1 or 0
counts[#counts + 1] = tonumber(m[4] or 0)
counts[#counts + 1] = tonumber(m[5] or 0)
counts[#counts + 1] = m[9] or '1' -- a fraction: numbers are cut in replies
for i = 6, 8 do counts[#counts + 1] = m[i] or '' end
for _, i in ipairs({ 10, 11, 13 }) do counts[#counts + 1] = tonumber(m[i] or 0) end
counts[#counts + 1] = redis.call('ZCARD', queue_key(queue, 'leaving'))
counts[#counts + 1] = m[12] or ''
counts[#counts + 1] = redis.call('HGETALL', queue_key(queue, 'tally'))
return counts
