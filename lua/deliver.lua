#!lua flags=allow-oom
-- deliver: note the outcome of a terminal webhook's attempt, in the record and among the prediction's events.
--
--   KEYS[1]  record    hash  {p}:rec:<id>
--   KEYS[2]  away      zset  {p}:away:<account>:<host>  this account's webhooks that this host missed → their next attempt
--   ARGV[1]  delay_ms  until the next attempt; '' for no other one: it arrived, or is given up
--   ARGV[2]  outcome   delivered, failed, refused, gone or given_up: kept in the record as `told`;
--                      put_off: it was not tried, and that is no attempt. It comes no sooner than it was due
--   ARGV[3]  revivals  of the record that was sent: with another number, another end is owed by now
--   ARGV[4]  status    that the receiver answered, '' for none
--   ARGV[5]  host      that it was sent to; the rest of the URL may be secret
--   ARGV[6]  is_away   '1': the host missed it, and the next attempt may be brought forward once the host answers
--   ARGV[7]  known     attempts that were noted before this one, '' for any: a failure whose reply was lost is counted
--                      once
--   ARGV[8]  rule      that forbids the address, '' for none
--   ARGV[9]  is_early  '1': this attempt was brought forward. A failure takes no step of the schedule: it comes again when
--                      it was due, or later if its receiver asked for a delay
--   Returns  2  noted: it arrived, and others of its account were missed by this host: see forward
--            1  noted
--            0  that end is no longer owed: nothing was written
--
-- uses keys:     ID, channel, clock, events, input, output, owed, queue
-- uses records:  DATA_TTL_MS, OWED_MS, append, entry
-- uses log:      write

local id, delay_ms, outcome, revivals, now = keys.ID, ARGV[1], ARGV[2], ARGV[3], keys.clock(ARGV[10])
local MOST_EVENTS = 100 -- of attempts: redelivery may be asked for any number of times
local MOST_WAITING = 10000 -- that are known by their receiver; others come when their own time has come

if not redis.call('ZSCORE', keys.owed(), id) then return 0 end
local r = redis.call('HMGET', KEYS[1], 'revivals', 'queue', 'tellings', 'account', 'next_telling', 'forwarded',
  'tellings_before')
if (r[1] or '0') ~= revivals then return 0 end
if outcome == 'failed' and ARGV[7] ~= '' and (r[3] or '0') ~= ARGV[7] then return 1 end

local queue, next_at, is_early = r[2], delay_ms ~= '' and now + delay_ms or '', outcome == 'failed' and ARGV[9] == '1'
local is_put_off, mark, due_at = outcome == 'put_off', r[6], tonumber(r[5])
-- a repetition of put_off, whose first reply was lost, finds no mark: so the time counts, except one of being put off
if is_early or is_put_off and mark ~= '0' then next_at = math.max(next_at, due_at or 0) end
if queue then redis.call('HSET', KEYS[1], 'next_telling', next_at) end
if queue and is_put_off and (mark == '0' or next_at ~= due_at) then -- later than by its schedule: never early after that
  redis.call('HSET', KEYS[1], 'forwarded', 0)
elseif mark then
  redis.call('HDEL', KEYS[1], 'forwarded')
end
if queue and is_early then -- which the former release counts the same way
  redis.call('HSET', KEYS[1], 'tellings_before', (tonumber(r[7]) or 0) + 1)
end
if queue and outcome ~= 'put_off' then
  local attempt = (r[3] or 0) + 1
  redis.call('HSET', KEYS[1], 'told', outcome, 'tellings', attempt)
  local status, later = ARGV[4] == '' and '-' or ARGV[4], next_at == '' and '-' or next_at
  local detail = table.concat({ 'completed', outcome, status, attempt, later, ARGV[5], ARGV[8] ~= '' and ARGV[8] or nil }, ' ')
  log.write('told', id, queue, r[4], now, table.concat({ outcome, status, attempt }, ' '))
  if attempt <= MOST_EVENTS and redis.call('EXISTS', keys.events(id)) == 1 then -- gone, it would get no lifetime again
    records.append(id, { records.entry('webhook', now, detail) })
    redis.call('PUBLISH', keys.channel(id), redis.call('HINCRBY', KEYS[1], 'seq', 1))
  end
end
local are_waiting = redis.call('EXISTS', KEYS[2]) == 1
if next_at ~= '' then
  redis.call('ZADD', keys.owed(), next_at, id)
  if ARGV[6] == '1' and (not are_waiting or redis.call('ZCARD', KEYS[2]) < MOST_WAITING) then
    redis.call('ZADD', KEYS[2], next_at, id)
    redis.call('PEXPIRE', KEYS[2], records.OWED_MS)
  end
  return 1
end
redis.call('ZREM', keys.owed(), id)
if are_waiting then redis.call('ZREM', KEYS[2], id) end
if queue then -- data that was kept longer for the webhook
  local ttl_ms = redis.call('HGET', KEYS[1], 'data_ttl_ms') or redis.call('HGET', keys.queue(queue, 'meta'), 'data_ttl_ms')
    or records.DATA_TTL_MS -- its version was deleted
  local kept = { keys.output(id), keys.events(id) }
  if not redis.call('ZSCORE', keys.queue(queue, 'dead'), id) then kept[3] = keys.input(id) end
  for _, key in ipairs(kept) do redis.call('PEXPIRE', key, ttl_ms, 'LT') end
end
return outcome == 'delivered' and are_waiting and redis.call('EXISTS', KEYS[2]) == 1 and 2 or 1
