-- lib/share: whose turn it is. The streams are the ready tier: a tenant that has much waiting keeps it in a backlog, and
-- claims let in the oldest of the tenant with the least virtual time (served cost ÷ weight). Needs lib/keys, lib/place.

local LANES = { 'high', 'normal', 'low' }
local DIRECT = 2 -- entries that a tenant without a backlog may have in a lane's streams

local function backlog_key(queue, lane, tenant) return queue_key(queue, 'backlog:' .. lane .. ':' .. tenant) end

-- (weight, most running or nil) of a tenant.
local function limits_of(queue, tenant)
  local text = redis.call('HGET', queue_key(queue, 'limits'), tenant)
  if not text then return 1, nil end
  local weight, most = string.match(text, '^(%S+) (%S*)$')
  return tonumber(weight), tonumber(most)
end

local function set_limits(queue, tenant, weight, most_running)
  local key, text = queue_key(queue, 'limits'), weight .. ' ' .. most_running
  if text == '1 ' then
    redis.call('HDEL', key, tenant)
  elseif redis.call('HGET', key, tenant) ~= text then
    redis.call('HSET', key, tenant, text)
  end
end

local function is_held(queue, tenant) return redis.call('SISMEMBER', queue_key(queue, 'held'), tenant) == 1 end

-- May another one of this tenant run now?
local function may_run(queue, tenant)
  if is_held(queue, tenant) then return false end
  local _, most = limits_of(queue, tenant)
  return not most or counted(queue, 'running', tenant) < most
end

-- May another entry of this tenant stand in the streams? What stands there is as good as running.
local function may_enter(queue, tenant)
  if is_held(queue, tenant) then return false end
  local _, most = limits_of(queue, tenant)
  if not most then return true end
  local busy = counted(queue, 'running', tenant)
  for _, lane in ipairs(LANES) do busy = busy + counted(queue, 'ready:' .. lane, tenant) end
  return busy < most
end

-- ── virtual time ─────────────────────────────────────────────────────────────────────────────────────────────────

local function lane_clock(queue, lane)
  return tonumber(redis.call('HGET', queue_key(queue, 'meta'), 'clock:' .. lane) or 0)
end

-- Its virtual time outside the refill is kept only while it is ahead of the lane's: else it says nothing.
local function keep_debt(queue, lane, tenant, own)
  if own > lane_clock(queue, lane) then
    redis.call('ZADD', queue_key(queue, 'debt:' .. lane), own, tenant)
  else
    redis.call('ZREM', queue_key(queue, 'debt:' .. lane), tenant)
  end
end

-- It has a backlog and may enter: from now on it is refilled from. Who comes late is not owed the past.
local function join(queue, lane, tenant)
  local vtime, debt = queue_key(queue, 'vtime:' .. lane), queue_key(queue, 'debt:' .. lane)
  if redis.call('ZSCORE', vtime, tenant) then return end
  local own = tonumber(redis.call('ZSCORE', debt, tenant) or 0)
  redis.call('ZREM', debt, tenant)
  redis.call('ZADD', vtime, math.max(own, lane_clock(queue, lane)), tenant)
end

local function part(queue, lane, tenant)
  local vtime = queue_key(queue, 'vtime:' .. lane)
  local own = redis.call('ZSCORE', vtime, tenant)
  if not own then return end
  redis.call('ZREM', vtime, tenant)
  if redis.call('EXISTS', vtime) == 0 then -- nobody waits for a turn: what was served so far is forgotten
    redis.call('DEL', queue_key(queue, 'debt:' .. lane))
    redis.call('HDEL', queue_key(queue, 'meta'), 'clock:' .. lane)
  else
    keep_debt(queue, lane, tenant, tonumber(own))
  end
end

-- Move a tenant's virtual time, while there is anybody it is compared with.
local function owe(queue, lane, tenant, seconds)
  local vtime = queue_key(queue, 'vtime:' .. lane)
  if redis.call('EXISTS', vtime) == 0 then return end
  local by = seconds / limits_of(queue, tenant)
  if redis.call('ZSCORE', vtime, tenant) then
    redis.call('ZINCRBY', vtime, by, tenant)
    return
  end
  local own = tonumber(redis.call('ZSCORE', queue_key(queue, 'debt:' .. lane), tenant) or lane_clock(queue, lane))
  keep_debt(queue, lane, tenant, own + by)
end

-- Seconds that it will take, as far as anybody knows.
local function expected_s(r)
  local mean = redis.call('HGET', queue_key(r.queue, 'meta'), 'service_ms')
  return tonumber(r.cost) * (mean and math.max(mean / 1000, 0.001) or 1)
end

-- What it was charged when it entered the streams is put right by what it took.
local function correct(r, seconds)
  if r.charged ~= '' then owe(r.queue, r.lane, r.account, seconds - r.charged) end
end

-- ── the backlog ──────────────────────────────────────────────────────────────────────────────────────────────────

local function into_backlog(id, r)
  if redis.call('ZADD', backlog_key(r.queue, r.lane, r.account), tonumber(r.arrival) or 0, id) == 1 then
    redis.call('HINCRBY', queue_key(r.queue, 'meta'), 'backlogged:' .. r.lane, 1)
  end
end

-- True when it stood there.
local function out_of_backlog(id, r)
  local backlog = backlog_key(r.queue, r.lane, r.account)
  if redis.call('ZREM', backlog, id) == 0 then return false end
  redis.call('HINCRBY', queue_key(r.queue, 'meta'), 'backlogged:' .. r.lane, -1)
  if redis.call('EXISTS', backlog) == 0 then part(r.queue, r.lane, r.account) end
  return true
end

-- A tenant may have room again: it ended one, or its limit was raised. Only who has limits can have been kept out.
local function rejoin(queue, tenant)
  if not may_enter(queue, tenant) then return end
  for _, lane in ipairs(LANES) do
    if redis.call('EXISTS', backlog_key(queue, lane, tenant)) == 1 then
      join(queue, lane, tenant)
      ring(queue)
    end
  end
end

local function has_room_again(queue, tenant)
  if redis.call('HEXISTS', queue_key(queue, 'limits'), tenant) == 1 then rejoin(queue, tenant) end
end

-- ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────────

-- File what waits: into a stream, or behind the rest of its tenant's. Returns the fields that the record gets. What was
-- handed out before stands at the head of its tenant's line, by its arrival.
local function file(id, r)
  local queue, lane, tenant = r.queue, r.lane, r.account
  local first = tonumber(r.claims) > 0 or redis.call('EXISTS', backlog_key(queue, lane, tenant)) == 0
  if first and counted(queue, 'ready:' .. lane, tenant) < DIRECT and may_enter(queue, tenant) then
    r.refilled = ''
    local number, mid = put(id, r)
    offer(queue, lane, number)
    local charged = ''
    if redis.call('EXISTS', queue_key(queue, 'vtime:' .. lane)) == 1 then
      charged = expected_s(r)
      owe(queue, lane, tenant, charged)
    end
    return { 'stream', number, 'mid', mid, 'refilled', '', 'charged', charged }
  end
  into_backlog(id, r)
  if may_enter(queue, tenant) then
    join(queue, lane, tenant)
    ring(queue)
  end
  return { 'stream', '', 'mid', '', 'refilled', '', 'charged', '' }
end

-- Out of its place for good. XACK alone would leave the entry for ever; XDEL alone its pending id.
local function unplace(id, r)
  if r.mid == '' then
    out_of_backlog(id, r)
    return
  end
  local stream = stream_key(r.queue, r.lane, r.stream)
  redis.call('XACK', stream, GROUP, r.mid)
  redis.call('XDEL', stream, r.mid)
  if r.token == '' then count_ready(r, -1) end
end

-- Let up to `room` entries into a lane's streams, each from the tenant whose turn it is; `offered(number)` is called
-- for every stream that got one. Returns how many.
local function refill(queue, lane, room, offered)
  local meta, vtime = queue_key(queue, 'meta'), queue_key(queue, 'vtime:' .. lane)
  local entered, looked = 0, 0
  while entered < room and looked < room + 64 do
    looked = looked + 1
    local least = redis.call('ZRANGE', vtime, 0, 0, 'WITHSCORES')
    local tenant, own = least[1], tonumber(least[2])
    if not tenant then break end
    local id = redis.call('ZRANGE', backlog_key(queue, lane, tenant), 0, 0)[1]
    local r = id and read(id)
    if r and not TERMINAL[r.status] and r.token == '' and r.mid == '' then
      r.refilled = '1'
      local number, mid = put(id, r)
      local charged = expected_s(r)
      redis.call('HSET', record_key(id), 'stream', number, 'mid', mid, 'refilled', '1', 'charged', charged)
      redis.call('HSET', meta, 'clock:' .. lane, own)
      redis.call('ZREMRANGEBYSCORE', queue_key(queue, 'debt:' .. lane), '-inf', own)
      redis.call('ZADD', vtime, own + charged / limits_of(queue, tenant), tenant)
      offered(number)
      entered = entered + 1
    end
    if id then out_of_backlog(id, { queue = queue, lane = lane, account = tenant }) end
    if not id or not may_enter(queue, tenant) then part(queue, lane, tenant) end
  end
  return entered
end
