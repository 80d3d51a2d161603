#!lua flags=no-writes
-- survey: what waits in one queue and could start now, by account and lane, for a director whose models share devices.
--
--   KEYS[1]  meta  hash  {p}:q:<queue>:meta
--   Returns  {order, accepted, service_ms, account, lane, count, oldest_ms, account, …}
--            order: an operator's, or ''; accepted: ever, without idle work; service_ms: 0 if unknown; oldest_ms: age of the oldest of them
--            Without what is paused, suspended, out of its hours, beyond an account's limit, or backs off, and nothing while the breaker is
--            open. Accounts beyond the first LOOK of a lane count as one, ''
--            {}  the queue is not registered
--
-- Sends 4 commands if nothing waits, and 3 more for each account and lane.
--
-- uses keys:     QUEUE, clock, queue, record
-- uses share:    LANES, backlog, closed_until
-- uses outlook:  line_up, look_at
-- uses breaker:  is_cool

local meta, queue, now = KEYS[1], keys.QUEUE, keys.clock(ARGV[1])
local LOOK_AT = 8 -- of the oldest, to find those that are in streams

local m = outlook.look_at(queue, 'normal')
if m.streams == '' then return {} end
local accepted = 0
for _, count in ipairs(redis.call('HMGET', keys.queue(queue, 'tally'), 'accepted:high', 'accepted:normal', 'accepted:low')) do
  accepted = accepted + (count or 0)
end
local reply = { redis.call('HGET', meta, 'order') or '', accepted, tonumber(m.service_ms) }

local function add(account, lane, count, oldest_ms)
  for _, value in ipairs({ account, lane, count, math.max(0, oldest_ms) }) do reply[#reply + 1] = value end
end

-- Age of the first in the backlog of an account.
local function age_of(backlog)
  local first = redis.call('ZRANGE', backlog, 0, 0)[1]
  return now - (first and redis.call('ZSCORE', keys.queue(queue, 'live'), first) or now)
end

-- Those in streams, by lane: accounts of the oldest are looked up.
local function add_ready()
  local left = { high = m.ready.high, normal = m.ready.normal, low = m.ready.low }
  if left.high + left.normal + left.low == 0 then return end
  local oldest = redis.call('ZRANGE', keys.queue(queue, 'live'), 0, LOOK_AT - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local r = redis.call('HMGET', keys.record(oldest[i]), 'account', 'lane', 'token', 'mid')
    if (r[3] or '') == '' and (r[4] or '') ~= '' and (left[r[2]] or 0) > 0 then
      left[r[2]] = left[r[2]] - 1
      add(r[1], r[2], 1, now - oldest[i + 1])
    end
  end
  -- At most as old as the last of those: with no age they would wait for ever behind older ones that may not start.
  for lane, count in pairs(left) do
    if count > 0 then add('', lane, count, now - (oldest[#oldest] or now)) end
  end
end

if m.paused == '1' or share.closed_until(queue, '') or (m.breaker ~= '' and not (m.breaker == 'open' and breaker.is_cool(m.open_until, m.cool_ms, now))) then
  return reply
end
add_ready()
for _, lane in ipairs(share.LANES) do
  if m.backlogged[lane] > 0 then
    local up, found, oldest_ms = outlook.line_up(queue, lane), 0, 0
    for _, account in ipairs(up.names) do
      local backlog = share.backlog(queue, lane, account)
      local count, age_ms = redis.call('ZCARD', backlog), age_of(backlog)
      found, oldest_ms = found + count, math.max(oldest_ms, age_ms)
      if count > 0 then add(account, lane, count, age_ms) end
    end
    local rest = m.backlogged[lane] - found
    if up.all > #up.names and rest > 0 then add('', lane, rest, oldest_ms) end
  end
end
return reply
