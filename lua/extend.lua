#!lua flags=allow-oom
-- extend: extend the leases that this consumer still has, and return which it lost and which must stop.
--
--   KEYS[1]  directors  zset  {p}:q:<queue>:directors
--   ARGV[1]  consumer
--   ARGV[2]  lease_ms
--   ARGV[3]  slots      that this consumer has, busy or free
--   ARGV[4]  state      of its servers: 'ready', 'starting', 'setup_failed' or 'server_auth'; or 'draining': it claims nothing
--   ARGV[5]  swap_said  '<reason> <eta_ms> <late_ms> <slots>' while the model shares a device and is not loaded; else ''
--   ARGV[6]  about      facts about this consumer, as JSON: kept for an hour; '' for none
--   ARGV[7]  now_ms     '' for the server's clock
--   ARGV[8…] id, token  for each claim; a call without claims is only a heartbeat
--   Returns  per claim  'held', 'lost', 'user' (its caller asked to cancel) or 'deadline' (its time is up)
--
-- uses keys:     ALIVE_MS, GROUP, QUEUE, clock, queue, record, stream
-- uses records:  past
-- uses spare:    ring

local queue, consumer, lease_ms, now = keys.QUEUE, ARGV[1], ARGV[2], keys.clock(ARGV[7])
local slots, state, swap, about = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local RECOUNT_MS, ABOUT_MS = 1000, 3600000

local answers = {}
for i = 8, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local r = redis.call('HMGET', keys.record(id), 'token', 'cancel', 'lane', 'stream', 'mid', 'deadline')
  if token == '' or r[1] ~= token then
    answers[#answers + 1] = 'lost'
  else
    -- JUSTID resets the idle time without counting a delivery. The token came first: XCLAIM alone would steal back.
    -- pcall: the group may be lost until the next claim makes it again, and the lease must move all the same
    redis.pcall('XCLAIM', keys.stream(queue, r[3], r[4]), keys.GROUP, consumer, 0, r[5], 'JUSTID')
    redis.call('ZADD', keys.queue(queue, 'lease'), now + lease_ms, id)
    local late = records.past(r[6] or '', now) and 'deadline' or 'held'
    answers[#answers + 1] = (r[2] and r[2] ~= '') and r[2] or late
  end
end
-- The sums over all directors are counted again once a second, or when this director's part changed. On a server that lost
-- its data the queue must be registered first.
local meta, mine = keys.queue(queue, 'meta'), slots .. ' ' .. state
if redis.call('HEXISTS', meta, 'streams') == 0 then return answers end
redis.call('ZADD', KEYS[1], now, consumer)
if swap ~= '' then redis.call('HSET', meta, 'swap', swap .. ' ' .. now) end
if about ~= '' then redis.call('SET', keys.queue(queue, 'about:' .. consumer), about, 'PX', ABOUT_MS) end
local changed = redis.call('HGET', keys.queue(queue, 'slots'), consumer) ~= mine
if changed then redis.call('HSET', keys.queue(queue, 'slots'), consumer, mine) end
if changed or math.abs(now - (redis.call('HGET', meta, 'recounted') or 0)) >= RECOUNT_MS then
  local sums = { ready = 0, starting = 0, setup_failed = 0, server_auth = 0 }
  for _, alive in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now - keys.ALIVE_MS, now + keys.ALIVE_MS)) do
    local number, kind = string.match(redis.call('HGET', keys.queue(queue, 'slots'), alive) or '', '^(%d+) (%S+)$')
    if sums[kind] then sums[kind] = sums[kind] + math.max(1, tonumber(number)) end
  end
  local was = tonumber(redis.call('HGET', meta, 'slots') or 0)
  if sums.ready > 0 and was == 0 then redis.call('HSET', meta, 'moved_at', now) end
  redis.call('HSET', meta, 'slots', sums.ready, 'starting', sums.starting, 'setup_failed', sums.setup_failed,
    'server_auth', sums.server_auth, 'recounted', now)
  if sums.ready ~= was then spare.ring(queue, true) end
end
return answers
