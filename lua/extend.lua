#!lua flags=allow-oom
-- extend: move the leases that this consumer still holds, and say which it lost and which must stop.
-- Uses lib/keys
--
--   KEYS[1]  directors  zset  {p}:q:<queue>:directors
--   ARGV[1]  queue
--   ARGV[2]  consumer
--   ARGV[3]  lease_ms
--   ARGV[4]  now_ms     '' for the server's clock
--   ARGV[5…] id, token  for each claim; none is a sign of life alone
--   Returns  per claim  'held', 'lost', 'user' (its caller asked to cancel) or 'deadline' (its time is up)

local queue, consumer, lease_ms, now = ARGV[1], ARGV[2], ARGV[3], clock(ARGV[4])

local answers = {}
for i = 5, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local r = redis.call('HMGET', record_key(id), 'token', 'cancel', 'lane', 'stream', 'mid', 'deadline')
  if token == '' or r[1] ~= token then
    answers[#answers + 1] = 'lost'
  else
    -- JUSTID resets the idle time without counting a delivery. The token came first: XCLAIM alone would steal back.
    -- pcall: the group may be lost until the next claim makes it again, and the lease must move all the same
    redis.pcall('XCLAIM', stream_key(queue, r[3], r[4]), GROUP, consumer, 0, r[5], 'JUSTID')
    redis.call('ZADD', queue_key(queue, 'lease'), now + lease_ms, id)
    local late = past(r[6] or '', now) and 'deadline' or 'held'
    answers[#answers + 1] = (r[2] and r[2] ~= '') and r[2] or late
  end
end
redis.call('ZADD', KEYS[1], now, consumer)
return answers
