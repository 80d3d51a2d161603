#!lua flags=no-writes
-- stats: count what waits, runs, is delayed and dead in one queue, and its directors.
--
--   KEYS[1]  meta      hash  {p}:q:<queue>:meta
--   Returns  {high, normal, low, claimed, delayed, dead, live, oldest_ms, directors, streams, read, paused,
--             slots, service_ms, service_cost, mode, max_queued, breaker, starting, setup_failed, server_auth, leaving,
--             objectives, paused_at, paused_by, swap, opens_ms, zone, planned, idle, closed, tally as a flat list}
--            counts waiting per lane, idle work as low; oldest_ms: how long ago the oldest live one was accepted; starting, setup_failed,
--            server_auth: directors in this state by their last heartbeat; leaving: on the way to another server
--            swap: the reason of a model that shares a device and is not loaded, or ''
--            opens_ms, zone: when the hours of the queue begin, '' while they are open. planned: of `delayed`; idle: of low
--            closed: of high, normal and low, what is out of its hours, as a list
--            {}  the queue is not registered
--
-- uses keys:     ALIVE_MS, QUEUE, clock, queue
-- uses ready:    mask_of
-- uses share:    LANES, closed_until
-- uses outlook:  closed_in, depths, look_at, swapped, waits_in

local meta, queue, now = KEYS[1], keys.QUEUE, keys.clock(ARGV[1])

local m = outlook.look_at(queue, 'normal')
if m.streams == '' then return {} end
local shown = redis.call('HMGET', meta, 'read', 'service_cost', 'max_queued', 'objectives', 'paused_at', 'paused_by')
local waits, sizes = {}, {}
for i, lane in ipairs(share.LANES) do
  waits[i] = m.backlogged[lane]
  -- where no claim would look, nothing waits; asking each of 48 streams is most of the cost
  for _, deep in pairs(outlook.depths(queue, lane, ready.mask_of(queue, lane))) do waits[i] = waits[i] + deep end
end
local idle, opens, zone = outlook.waits_in(m, 'idle'), share.closed_until(queue, '')
local closed = {}
for i, lane in ipairs(share.LANES) do closed[i] = opens and waits[i] or math.min(waits[i], outlook.closed_in(queue, { lane })) end
waits[3] = waits[3] + idle
for i, index in ipairs({ 'delayed', 'dead', 'live', 'leaving' }) do sizes[i] = redis.call('ZCARD', keys.queue(queue, index)) end
local oldest = redis.call('ZRANGE', keys.queue(queue, 'live'), 0, 0, 'WITHSCORES')
return {
  waits[1], waits[2], waits[3], m.claimed, sizes[1], sizes[2], sizes[3], oldest[2] and math.max(0, now - oldest[2]) or 0,
  redis.call('ZCOUNT', keys.queue(queue, 'directors'), now - keys.ALIVE_MS, now + keys.ALIVE_MS),
  tonumber(m.streams), tonumber(shown[1]), m.paused == '1' and 1 or 0, tonumber(m.slots), tonumber(m.service_ms),
  shown[2] or '1', -- a fraction: numbers are cut in replies
  m.mode, shown[3] or '', m.breaker, tonumber(m.starting), tonumber(m.setup_failed), tonumber(m.server_auth), sizes[4],
  shown[4] or '', shown[5] or '', shown[6] or '',
  tonumber(m.slots) == 0 and tonumber(m.starting) > 0 and outlook.swapped(queue, m, now) or '',
  opens or '', zone or '', redis.call('ZCOUNT', keys.queue(queue, 'live'), '(' .. now, '+inf'), idle, closed,
  redis.call('HGETALL', keys.queue(queue, 'tally')),
}
