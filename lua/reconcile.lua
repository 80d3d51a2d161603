#!lua flags=allow-oom
-- reconcile: check one slice of the live predictions against the indexes, and repair what is missing. The first slice of a
-- pass also drops those of the oldest `count` dead letters whose records have expired.
--
--   KEYS[1]  live  zset  {p}:q:<queue>:live
--   ARGV[1]  start     rank of the first id of this slice
--   ARGV[2]  count     ids in this slice
--   ARGV[3]  lease_ms  a claim without a lease gets this one: its holder extends it, or it is reaped
--   Returns  {next, id, repair, …}
--            next    rank that the next slice starts from, 0 after the last one
--            repair  'forgotten' (no record, a terminal one, or one at another server), 'leased', 'offered' (no claim would
--                    have looked into its stream or backlog), 'timed' (its deadline was in no index) or 'placed' (in line, or
--                    beside it until its time)
--
-- uses keys:     QUEUE, clock, queue, record, stream
-- uses records:  TERMINAL, read, soonest
-- uses ready:    delivered, mask_of, offer, ring
-- uses pending:  correct_charge
-- uses share:    ALL_LANES, backlog, file_now, join_turns, may_run, take_away

local live, queue, from, count, lease_ms = KEYS[1], keys.QUEUE, tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local now = keys.clock(ARGV[4])
local LEAST_MS = 60000 -- of the longest backoff: for waits under a former policy and waits for a server without room

-- True if a claim will still find it: it is in its backlog, or its entry is there and was not delivered yet.
local function is_waiting(id, r)
  if r.mid == '' then return redis.call('ZSCORE', share.backlog(queue, r.lane, r.account), id) end
  local stream = keys.stream(queue, r.lane, r.stream)
  if redis.call('EXISTS', stream) == 0 then return false end
  local newest = redis.call('XREVRANGE', stream, r.mid, '(' .. ready.delivered(stream), 'COUNT', 1)[1]
  return newest and newest[1] == r.mid
end

-- True if it waits for its time. A retry that is due later than any backoff was written before the clock went back: it is due.
local function is_delayed(id, r)
  local due = r.mid == '' and tonumber(redis.call('ZSCORE', keys.queue(queue, 'delayed'), id) or '')
  if not due or due == tonumber(r.start_after) then return due end
  local cap_ms = redis.call('HGET', keys.queue(queue, 'meta'), 'backoff_cap_ms')
  return due <= now + math.max(LEAST_MS, tonumber(cap_ms) or 0)
end

-- Make claims look into its stream or its account's backlog. Returns true if they did not.
local function offer_again(r)
  if r.mid ~= '' then
    local mask = ready.mask_of(queue, r.lane)
    if bit.band(mask, bit.lshift(1, r.stream)) ~= 0 then return false end
    ready.offer(queue, r.lane, r.stream, mask)
    return true
  end
  if redis.call('ZSCORE', keys.queue(queue, 'vtime:' .. r.lane), r.account) or not share.may_run(queue, r.account) then return false end
  share.join_turns(queue, r.lane, r.account)
  ready.ring(queue)
  return true
end

local function time_again(id, r)
  local index = keys.queue(queue, 'deadline')
  if not records.soonest(r) or redis.call('ZSCORE', index, id) then return false end
  redis.call('ZADD', index, records.soonest(r), id)
  return true
end

-- Nothing is live: clear the counts per account, which a lost key may have made wrong.
local function forget_counts()
  for _, lane in ipairs(share.ALL_LANES) do
    if redis.call('EXISTS', keys.queue(queue, 'vtime:' .. lane)) == 1 then return end -- `live` was lost, not they
  end
  redis.call('DEL', keys.queue(queue, 'queued'), keys.queue(queue, 'running'))
  for _, lane in ipairs(share.ALL_LANES) do
    redis.call('DEL', keys.queue(queue, 'vtime:' .. lane), keys.queue(queue, 'debt:' .. lane), keys.queue(queue, 'charged:' .. lane))
    redis.call('HDEL', keys.queue(queue, 'meta'), 'ready:' .. lane, 'backlogged:' .. lane, 'clock:' .. lane)
  end
end

-- A dead letter without a record cannot be revived, and nothing but another death would take it off the list.
local function forget_letters()
  local dead = keys.queue(queue, 'dead')
  for _, id in ipairs(redis.call('ZRANGE', dead, 0, count - 1)) do
    if redis.call('EXISTS', keys.record(id)) == 0 then redis.call('ZREM', dead, id) end
  end
end

local function repair(id)
  local r = records.read(id)
  if not r or records.TERMINAL[r.status] or r.leaving ~= '' or r.moved ~= '' then
    redis.call('ZREM', live, id)
    return 'forgotten'
  end
  if r.token ~= '' then
    if redis.call('ZSCORE', keys.queue(queue, 'lease'), id) then return nil end
    redis.call('ZADD', keys.queue(queue, 'lease'), now + lease_ms, id)
    return 'leased'
  end
  local in_line = is_waiting(id, r)
  if is_delayed(id, r) or in_line then
    if in_line and offer_again(r) then return 'offered' end
    return time_again(id, r) and 'timed' or nil
  end
  share.take_away(id, r)
  pending.correct_charge(r, 0)
  local planned = r.claims == '0' and tonumber(r.start_after)
  if planned and planned > now then
    redis.call('ZADD', keys.queue(queue, 'delayed'), planned, id)
    redis.call('HSET', keys.record(id), 'stream', '', 'mid', '', 'charged', '')
  else
    redis.call('ZREM', keys.queue(queue, 'delayed'), id)
    redis.call('HSET', keys.record(id), unpack(share.file_now(id, r)))
  end
  time_again(id, r)
  return 'placed'
end

local ids = redis.call('ZRANGE', live, from, from + count - 1)
local reply, kept = { 0 }, 0
for _, id in ipairs(ids) do
  local done = repair(id)
  if done ~= 'forgotten' then kept = kept + 1 end
  if done then
    reply[#reply + 1] = id
    reply[#reply + 1] = done
  end
end
if from == 0 then forget_letters() end
if redis.call('EXISTS', live) == 0 then forget_counts() end
if #ids == count then reply[1] = from + kept end
return reply
