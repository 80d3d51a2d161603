-- lib/outlook: why one waits, how many go before it, and for how long. Reads only, and a bounded number of keys.
-- Needs lib/keys, lib/place, lib/share.

local TURNS_OF = { high = 8, normal = 3, low = 1 }
local ALIVE_MS = 20000 -- a director silent for longer is not counted on
local LOOK = 64 -- most tenants, and entries of a stream, that one look counts
local P90 = 1.2816

-- Undelivered entries of each stream of a lane that may hold any, and their sum.
local function depths(queue, lane, mask)
  local depth, sum, rest = {}, 0, mask
  while rest ~= 0 do
    local number = next_set(rest, 0)
    rest = without_bit(rest, number)
    depth[number] = waiting(stream_key(queue, lane, number))
    sum = sum + depth[number]
  end
  return depth, sum
end

-- Entries of its lane that are read before an entry of a stream: those in front of it, and as many of each other one.
local function ahead_in_streams(r, depth, turn)
  local stream = stream_key(r.queue, r.lane, r.stream)
  local own = tonumber(r.stream)
  local before = math.max(0, #redis.call('XRANGE', stream, '(' .. delivered(stream), r.mid, 'COUNT', LOOK) - 1)
  local sum = before
  for number, deep in pairs(depth) do
    local comes_first = (number - turn) % 32 < (own - turn) % 32
    if number ~= own then sum = sum + math.min(deep, before + (comes_first and 1 or 0)) end
  end
  return sum, before
end

-- Entries that leave backlogs before the one at `rank` of its tenant's: each tenant's share by its weight.
local function ahead_in_backlogs(r, rank, each_s)
  local queue, lane, tenant = r.queue, r.lane, r.account
  local vtime = queue_key(queue, 'vtime:' .. lane)
  local own = tonumber(redis.call('ZSCORE', vtime, tenant) or lane_clock(queue, lane))
  local turn = own + rank * each_s / limits_of(queue, tenant) -- the virtual time at which it is let in
  local sum, looked = rank, 0
  local others = redis.call('ZRANGE', vtime, 0, LOOK - 1, 'WITHSCORES')
  for i = 1, #others, 2 do
    if others[i] ~= tenant then
      local fit = (turn - others[i + 1]) * limits_of(queue, others[i]) / each_s + 0.5
      sum = sum + math.max(0, math.min(redis.call('ZCARD', backlog_key(queue, lane, others[i])), math.floor(fit)))
      looked = looked + 1
    end
  end
  local unseen = redis.call('ZCARD', vtime) - looked - 1
  if looked > 0 and unseen > 0 then sum = sum + math.floor((sum - rank) / looked * unseen) end
  return sum
end

-- Why nothing of this queue starts now, or nil.
local function stoppage(m, queue, now)
  if m.paused == '1' then return 'paused' end
  if m.breaker ~= '' then return 'breaker_open' end
  local last = redis.call('ZREVRANGE', queue_key(queue, 'directors'), 0, 0, 'WITHSCORES')
  if not last[2] or now - last[2] > ALIVE_MS then return 'no_director' end
  if tonumber(m.slots) > 0 then return nil end
  if tonumber(m.starting) > 0 then return 'servers_starting' end
  return tonumber(m.setup_failed) > 0 and 'setup_failed' or 'no_director'
end

-- Milliseconds until as many starts as `starts` have gone by, with `slots` at work: (p50, p90).
local function wait_of(starts, slots, m)
  if starts <= 0 then return 0, 0 end
  local mean, deviation = tonumber(m.service_ms), tonumber(m.service_dev)
  local expected = starts * mean / slots
  local spread = math.sqrt(starts) * deviation / slots
  -- what others submit meanwhile goes before some of it, and the mean itself is only known so well
  return expected, expected * 1.1 + P90 * math.sqrt(spread * spread + 0.01 * expected * expected) + 0.5 * mean / slots
end

local FIELDS = { 'paused', 'breaker', 'slots', 'starting', 'setup_failed', 'service_ms', 'service_dev',
  'mask:high', 'mask:normal', 'mask:low', 'backlogged:high', 'backlogged:normal', 'backlogged:low',
  'next:high', 'next:normal', 'next:low' }
local TEXTS = { paused = true, breaker = true }

local function look_at(queue)
  local values = redis.call('HMGET', queue_key(queue, 'meta'), unpack(FIELDS))
  local m = {}
  for i, field in ipairs(FIELDS) do m[field] = values[i] or (TEXTS[field] and '' or '0') end
  return m
end

-- How it stands with a waiting prediction, or with one that would be filed now (`id` nil):
-- {position, ahead, p50_ms, p90_ms, reason, detail}; the two times '' where nobody can tell; detail a number or ''.
local function outlook(id, r, now)
  local queue, lane, tenant = r.queue, r.lane, r.account
  local m = look_at(queue)
  local held = is_held(queue, tenant)
  local due = id and redis.call('ZSCORE', queue_key(queue, 'delayed'), id)
  local _, most = limits_of(queue, tenant)
  local running, ready = counted(queue, 'running', tenant), counted(queue, 'ready:' .. lane, tenant)
  local backlog = backlog_key(queue, lane, tenant)

  local waits = {} -- of each lane: what stands in streams and backlogs
  local depth, in_streams
  for _, name in ipairs(LANES) do
    local found, sum = depths(queue, name, tonumber(m['mask:' .. name]))
    if name == lane then depth, in_streams = found, sum end
    waits[name] = sum + tonumber(m['backlogged:' .. name])
  end

  local position, ahead = 1, 0
  local rank = id and redis.call('ZRANK', backlog, id)
  if not id and (redis.call('EXISTS', backlog) == 1 or ready >= DIRECT) then rank = redis.call('ZCARD', backlog) end
  if rank then
    position = ready + rank + 1
    local mean = tonumber(m.service_ms)
    ahead = in_streams + ahead_in_backlogs(r, rank, mean > 0 and mean / 1000 or 1)
  elseif id and r.mid ~= '' then
    local before
    ahead, before = ahead_in_streams(r, depth, tonumber(m['next:' .. lane]))
    position = math.min(before, ready - 1) + 1
  elseif not id then
    position, ahead = ready + 1, in_streams
  end
  local own_lane = ahead
  for _, other in ipairs(LANES) do
    if other ~= lane then
      ahead = ahead + math.min(waits[other], math.floor((own_lane + 1) * TURNS_OF[other] / TURNS_OF[lane]))
    end
  end

  local slots, reason, detail = tonumber(m.slots), stoppage(m, queue, now), ''
  local is_limited = most and running >= most
  if held then reason = 'paused' end
  if reason == nil and due then
    reason, detail = 'backing_off', due
  elseif reason == nil and is_limited then
    reason, detail = 'limit_reached', most
  end
  local p50, p90 = '', ''
  if reason == nil or reason == 'backing_off' or reason == 'limit_reached' then
    local starts = ahead + redis.call('ZCARD', queue_key(queue, 'lease')) - slots + 1
    if starts <= 0 and not is_limited then
      p50, p90 = 0, 0
    elseif m.service_ms ~= '0' then
      p50, p90 = wait_of(starts, slots, m)
      if most then
        local own50, own90 = wait_of(position + running - most, math.min(most, slots), m)
        p50, p90 = math.max(p50, own50), math.max(p90, own90)
      end
    end
    if due and p50 ~= '' then
      local left = math.max(0, due - now)
      p50, p90 = p50 + left, p90 + left
    end
  end
  if p50 ~= '' then p50, p90 = math.floor(p50), math.floor(p90) end
  return { position, ahead, p50, p90, reason or 'waiting_its_turn', detail }
end
