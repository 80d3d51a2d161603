#!lua flags=allow-oom
-- deliver: note how an attempt to deliver a terminal webhook went.
-- Uses lib/keys
--
--   KEYS[1]  record    hash  {p}:rec:<id>
--   KEYS[2]  owed      zset  {p}:owed
--   ARGV[1]  id
--   ARGV[2]  delay_ms  until the next attempt; '' when there is none: it arrived, or is given up
--   ARGV[3]  outcome   delivered, failed, refused, gone or given_up: kept in the record as `told`
--   ARGV[4]  revivals  of the record that was told of: another number, and another end is owed by now
--   ARGV[5]  now_ms    '' for the server's clock
--   Returns  1  noted
--            0  that end is not owed any more: nothing was written

local id, delay_ms, outcome, revivals, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], clock(ARGV[5])

if not redis.call('ZSCORE', KEYS[2], id) then return 0 end
if (redis.call('HGET', KEYS[1], 'revivals') or '0') ~= revivals then return 0 end

local queue = redis.call('HGET', KEYS[1], 'queue')
if queue then
  redis.call('HSET', KEYS[1], 'told', outcome)
  redis.call('HINCRBY', KEYS[1], 'tellings', 1)
end
if delay_ms ~= '' then
  redis.call('ZADD', KEYS[2], now + delay_ms, id)
  return 1
end
redis.call('ZREM', KEYS[2], id)
if queue then -- what was kept longer for the webhook's sake
  local ttl_ms = redis.call('HGET', queue_key(queue, 'meta'), 'data_ttl_ms')
  local kept = { output_key(id), events_key(id) }
  if not redis.call('ZSCORE', queue_key(queue, 'dead'), id) then kept[3] = input_key(id) end
  for _, key in ipairs(kept) do redis.call('PEXPIRE', key, ttl_ms, 'LT') end
end
return 1
