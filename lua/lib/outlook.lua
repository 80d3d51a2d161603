-- lib/outlook: why a prediction waits, how many start before it, and for how long. Reads a bounded number of keys.
--
-- uses keys:     ALIVE_MS, queue, record, stream
-- uses ready:    choose_stream, delivered, next_set, waiting_in, without_bit
-- uses pending:  counted, counts
-- uses estimate: LATE90, expected_charge, means
-- uses share:    LANES, backlog, backlog_depths, closed_until, has_any, is_calm, is_held, is_suspended, limits_of, may_run,
--                start_of

outlook.TURNS_OF = { high = 8, normal = 3, low = 1 }
outlook.LOOK = 32 -- most accounts, and most entries of a stream, that are counted
outlook.P90 = 1.2816

-- Undelivered entries of each stream of a lane that may hold any, by its mask.
function outlook.depths(queue, lane, rest)
  local depth, number = {}, 0
  while rest ~= 0 do
    number = ready.next_set(rest, number)
    rest = ready.without_bit(rest, number)
    depth[number] = ready.waiting_in(keys.stream(queue, lane, number))
  end
  return depth
end

-- Undelivered entries in front of it in its stream.
function outlook.in_front(r)
  local stream = keys.stream(r.queue, r.lane, r.stream)
  return math.max(0, #redis.call('XRANGE', stream, '(' .. ready.delivered(stream), r.mid, 'COUNT', outlook.LOOK) - 1)
end

-- Entries of its lane that are read before it: those in front of it, and as many from each other stream.
function outlook.ahead_in_streams(own, before, depth, turn)
  local sum = before
  for number, deep in pairs(depth) do
    local comes_first = (number - turn) % 32 < (own - turn) % 32
    if number ~= own then sum = sum + math.min(deep, before + (comes_first and 1 or 0)) end
  end
  return sum
end

-- The accounts that have turns in a lane, by place: name, virtual time, and what it has waiting. Read once for a call.
outlook.lines_up = {}
function outlook.line_up(queue, lane)
  local up = outlook.lines_up[lane]
  if up then return up end
  local vtime = keys.queue(queue, 'vtime:' .. lane)
  local least = redis.call('ZRANGE', vtime, 0, outlook.LOOK - 1, 'WITHSCORES')
  up = { names = {}, times = {}, waiting = {}, all = #least == 2 * outlook.LOOK and redis.call('ZCARD', vtime) or #least / 2 }
  for i = 1, #least / 2 do up.names[i], up.times[i] = least[2 * i - 1], tonumber(least[2 * i]) end
  if #least > 0 then up.waiting = redis.call('HMGET', keys.queue(queue, 'queued'), unpack(up.names)) end
  outlook.lines_up[lane] = up
  return up
end

-- Return the account's place in the line, or nil.
function outlook.place_in(up, account)
  for i, name in ipairs(up.names) do
    if name == account then return i end
  end
end

-- Entries that leave backlogs before the one at `rank` of its account's: each account's share by weight, at most what it
-- has waiting. That number includes other lanes, because one call then reads it for all accounts. Each run is taken to be
-- charged as much as this one (`each`, as virtual times are): what other accounts send is not read. If their prompts are
-- longer, fewer go before it.
function outlook.ahead_in_backlogs(r, rank, each)
  local queue, lane, account = r.queue, r.lane, r.account
  local up = outlook.line_up(queue, lane)
  local place = outlook.place_in(up, account)
  local own = place and up.times[place] or tonumber(redis.call('ZSCORE', keys.queue(queue, 'vtime:' .. lane), account)
    or redis.call('ZSCORE', keys.queue(queue, 'debt:' .. lane), account) or share.start_of(queue, lane))
  local turn = own + rank * each / share.limits_of(queue, account) -- the virtual time at which it is admitted
  local sum, others, later = rank, 0, pending.counts.queued or {}
  local times, queued, are_equal = up.times, up.waiting, not share.has_any(queue, 'limits')
  for i, other in ipairs(up.names) do
    if i ~= place then
      local fit = math.floor((turn - times[i]) * (are_equal and 1 or share.limits_of(queue, other)) / each + 0.5)
      if fit > 0 then sum = sum + math.max(0, math.min((queued[i] or 0) + (later[other] or 0), fit)) end
      others = others + 1
    end
  end
  local unseen = others > 0 and #up.names == outlook.LOOK and up.all - others - 1 or 0
  return unseen > 0 and sum + math.floor((sum - rank) / others * unseen) or sum
end

-- What its director last said of a model that shares a device and is not loaded: its reason, or nil. `m` gets the rest.
function outlook.swapped(queue, m, now)
  local reason, eta, late, slots, at =
    string.match(redis.call('HGET', keys.queue(queue, 'meta'), 'swap') or '', '^(%S+) (%d*) (%d*) (%d+) (%d+)$')
  if not reason or math.abs(now - at) > keys.ALIVE_MS then return nil end
  m.swap = { eta = tonumber(eta), late = tonumber(late), slots = slots }
  return reason
end

-- The reason why nothing of this queue starts now, or nil.
function outlook.stoppage(queue, m, now)
  if m.paused == '1' then return 'paused' end
  if share.closed_until(queue, '') then return 'closed' end
  if m.breaker ~= '' then return 'breaker_open' end
  if now - m.recounted > keys.ALIVE_MS then return 'no_director' end
  if tonumber(m.slots) > 0 then return nil end
  if tonumber(m.starting) > 0 then return outlook.swapped(queue, m, now) or 'servers_starting' end
  if tonumber(m.server_auth) > 0 then return 'server_auth' end
  return tonumber(m.setup_failed) > 0 and 'setup_failed' or 'no_director'
end

-- Milliseconds until a slot is free, and how long a run is overdue, from one run that began early: the lease that is due
-- first. It ends when the mean is over. Once it is overdue it takes as long again, unless another run ends before.
function outlook.next_end(r, m, now)
  local id = redis.call('ZRANGE', keys.queue(r.queue, 'lease'), 0, 0)[1]
  local since = tonumber(id and redis.call('HGET', keys.record(id), 'claimed') or '') or now
  local left = m.service_ms - math.max(0, now - since)
  local first = math.sqrt(left * left + 0.5 * m.service_dev ^ 2)
  local others = m.slots - 1
  if left < 0 and others > 0 then return math.min(first, m.service_ms / others), math.min(-left, m.service_ms / others) end
  return first, math.max(0, -left)
end

-- Milliseconds until `starts` predictions have started on `slots` slots, the first after `first`: (p50, p90), as runs tell.
function outlook.wait_of(starts, slots, first, overdue, m)
  if starts <= 0 then return 0, 0 end
  local mean, off = m.service_ms / slots, m.service_dev / slots
  local expected = first + (starts - 1) * mean
  local unsure, between = 0.5 * expected / math.sqrt(m.service_n), 0.5 * mean * (1 - 1 / slots)
  return expected, expected + outlook.P90 * math.sqrt(starts * off * off + unsure * unsure + between * between + overdue * overdue)
end

-- Read the queue's state. `m.lane`: the lane in question, as share.look_at_lane returns it, and the stream that is read next.
-- A lost key may leave a lane's counts below zero for some time.
function outlook.look_at(queue, lane)
  local v = redis.call('HMGET', keys.queue(queue, 'meta'), 'mask:' .. lane, 'next:' .. lane,
    'streams', 'mode', 'lifetime_ms', 'breaker_mode', 'paused', 'breaker', 'max_queued', 'open_until', 'cool_ms',
    'slots', 'starting', 'setup_failed', 'server_auth', 'recounted', 'service_ms', 'service_dev', 'late50',
    'late90', 'arrivals', 'ready:high', 'ready:normal', 'ready:low', 'backlogged:high', 'backlogged:normal',
    'backlogged:low', 'service_n', 'service_cost', 'service_out', 'ready:idle', 'backlogged:idle')
  estimate.means = { v[17], v[29], v[30] }
  local m = { claimed = redis.call('ZCARD', keys.queue(queue, 'lease')),
    streams = v[3] or '', mode = v[4] or '', lifetime_ms = v[5] or '', breaker_mode = v[6] or '',
    paused = v[7] or '', breaker = v[8] or '', max_queued = v[9] or '0', open_until = v[10] or '0',
    cool_ms = v[11] or '0', slots = v[12] or '0', starting = v[13] or '0', setup_failed = v[14] or '0',
    server_auth = v[15] or '0', recounted = v[16] or '0', service_ms = v[17] or '0', service_dev = v[18] or '0',
    late50 = v[19] or '1', late90 = v[20] or estimate.LATE90, service_n = v[28] or '1', arrivals = v[21] or '0',
    ready = { high = math.max(0, v[22] or 0), normal = math.max(0, v[23] or 0), low = math.max(0, v[24] or 0),
      idle = math.max(0, v[31] or 0) },
    backlogged = { high = math.max(0, v[25] or 0), normal = math.max(0, v[26] or 0), low = math.max(0, v[27] or 0),
      idle = math.max(0, v[32] or 0) } }
  m.lane = { backlogged = m.backlogged[lane], ready = m.ready[lane], slots = tonumber(m.slots),
    claimed = m.claimed, streams = m.streams, mask = tonumber(v[1] or 0), next = tonumber(v[2] or 0) }
  return m
end

-- Return the number that waits in a lane, as outlook.look_at found it.
function outlook.waits_in(m, lane) return m.ready[lane] + m.backlogged[lane] end

-- Entries of a backlog, counted once for a call: share.file keeps the number.
function outlook.depth_of(backlog)
  share.backlog_depths[backlog] = share.backlog_depths[backlog] or redis.call('ZCARD', backlog)
  return share.backlog_depths[backlog]
end

-- Return how many are in line in these lanes whose accounts are out of their hours. Some accounts of many are looked at.
outlook.CLOSED_LOOK = 256
function outlook.closed_in(queue, lanes)
  if not share.has_any(queue, 'hours') then return 0 end
  local sum, opens = 0, redis.call('ZRANGE', keys.queue(queue, 'opens'), 0, outlook.CLOSED_LOOK - 1)
  local waiting = #opens > 0 and redis.call('HMGET', keys.queue(queue, 'queued'), unpack(opens)) or {}
  for i, account in ipairs(opens) do
    if waiting[i] and account ~= '' and share.closed_until(queue, account) then
      for _, lane in ipairs(lanes) do sum = sum + outlook.depth_of(share.backlog(queue, lane, account)) end
    end
  end
  return sum
end

-- Its place in its account's line, and how many of its lane start before it.
function outlook.stand(id, r, m)
  local rank, look = nil, m.lane
  if id then
    rank = redis.call('ZRANK', share.backlog(r.queue, r.lane, r.account), id)
  elseif not share.may_run(r.queue, r.account) or not share.is_calm(look) then
    rank = outlook.depth_of(share.backlog(r.queue, r.lane, r.account))
  end
  if rank then
    return rank + 1, look.ready + outlook.ahead_in_backlogs(r, rank, estimate.expected_charge(r))
  end
  local depth = look.depth or outlook.depths(r.queue, r.lane, look.ready > 0 and look.mask or 0)
  look.depth = depth
  if r.mid ~= '' then
    return 1, outlook.ahead_in_streams(tonumber(r.stream), outlook.in_front(r), depth, look.next)
  elseif not id then
    local number = ready.choose_stream(r, look)
    return 1, outlook.ahead_in_streams(number, depth[number] or 0, depth, look.next)
  end
  return 1, 0 -- delayed: it comes back at the head of its line
end

-- The number ahead over all lanes: other lanes with work have their own turns.
function outlook.ahead_of_all(lane, ahead, m)
  local sum = ahead
  for _, other in ipairs(share.LANES) do
    if lane == 'idle' then
      sum = sum + outlook.waits_in(m, other)
    elseif other ~= lane then
      sum = sum + math.min(outlook.waits_in(m, other), math.floor((ahead + 1) * outlook.TURNS_OF[other] / outlook.TURNS_OF[lane]))
    end
  end
  return sum
end

-- The reason why it waits, with its number or time.
function outlook.reason_of(id, r, m, most, running, now)
  local has_any = share.has_any(r.queue, 'any')
  if has_any and share.is_suspended(r.queue, r.account) then return 'paused', 2 end
  if has_any and share.is_held(r.queue, r.account) then return 'paused', 1 end
  local stopped = outlook.stoppage(r.queue, m, now)
  if stopped == 'paused' then
    local noted = redis.call('HMGET', keys.queue(r.queue, 'meta'), 'paused_at', 'paused_by')
    return stopped, (noted[1] or '') .. ' ' .. (noted[2] or '')
  end
  local opens, zone
  if has_any then opens, zone = share.closed_until(r.queue, '') end
  if has_any and not opens then opens, zone = share.closed_until(r.queue, r.account) end
  if opens then return 'closed', string.format('%d %s', opens, zone) end
  if stopped then return stopped, '' end
  local due = id and redis.call('ZSCORE', keys.queue(r.queue, 'delayed'), id)
  if due then return 'backing_off', due end
  if most and running >= most then return 'limit_reached', most end
  return r.lane == 'idle' and 'idle' or 'waiting_its_turn', ''
end

-- The duration of other reasons is unknown.
outlook.MOVES = { backing_off = true, closed = true, limit_reached = true, waiting_its_turn = true, loading = true, waiting_for_device = true }

-- Milliseconds until it starts: (p50, p90), '' if unknown.
function outlook.eta_of(r, m, position, ahead, most, running, delay_ms, now)
  local slots = tonumber(m.swap and m.swap.slots or m.slots)
  local starts = ahead + (m.swap and 0 or m.claimed) - slots + 1 -- what is claimed ends before a swap
  local own_starts = most and position + running - most or 0
  if starts <= 0 and own_starts <= 0 then return delay_ms, delay_ms end
  if m.service_ms == '0' then return '', '' end
  if not m.first then m.first, m.overdue = outlook.next_end(r, m, now) end
  local own_slots = math.min(most or slots, slots)
  local p50, p90 = outlook.wait_of(starts, slots, m.first, m.overdue, m)
  local own50, own90 = outlook.wait_of(own_starts, own_slots, m.service_ms / own_slots, 0, m)
  p50, p90 = math.max(p50, own50), math.max(p90, own90)
  local told = math.floor(m.late50 * p50)
  local runs = string.format('%.4g %.4g', p50 / m.service_ms, p90 / m.service_ms)
  return delay_ms + told, delay_ms + math.max(told, math.floor(m.late90 * p90)), runs
end

-- The time before which its caller does not want it to start, or nil. A retry waits for another reason.
function outlook.planned_for(id, r, now)
  local at = tonumber(r.start_after)
  if not at or at <= now then return nil end
  return (not id or redis.call('ZSCORE', keys.queue(r.queue, 'delayed'), id)) and at
end

-- The outlook of a waiting prediction, or of one that would be accepted now (`id` nil):
-- {position, ahead, p50_ms, p90_ms, reason, detail}; detail is a number or '', or '<since> <by>' of a paused queue, or
-- '<opens> <zone>' out of hours.
-- `m`: the result of outlook.look_at, if at hand.
function outlook.of(id, r, now, m)
  m = m or outlook.look_at(r.queue, r.lane)
  local planned = outlook.planned_for(id, r, now)
  if planned then -- which others wait then is not known
    local delay_ms = outlook.stoppage(r.queue, m, now) and '' or planned - now
    return { 1, 0, delay_ms, delay_ms, 'start_after', planned }
  end
  local _, most = share.limits_of(r.queue, r.account)
  local running = most and pending.counted(r.queue, 'running', r.account) or 0
  local position, ahead = outlook.stand(id, r, m)
  ahead = outlook.ahead_of_all(r.lane, ahead, m)
  local reason, detail = outlook.reason_of(id, r, m, most, running, now)
  local p50, p90, runs = '', '', ''
  local is_served = reason ~= 'closed' or (tonumber(m.slots) > 0 and now - m.recounted <= keys.ALIVE_MS)
  if outlook.MOVES[reason] and is_served and not (m.swap and not m.swap.eta) then
    local delay_ms = reason == 'backing_off' and math.max(0, detail - now) or 0
    if reason == 'closed' then delay_ms = string.match(detail, '^%d+') - now end
    if m.swap then delay_ms = m.swap.eta end
    p50, p90, runs = outlook.eta_of(r, m, position, ahead, most, running, delay_ms, now)
    -- the factors for waiting times learn from runs alone
    if m.swap then p90, runs = p90 ~= '' and p90 + m.swap.late - m.swap.eta or '', '' end
  end
  return { position, ahead, p50, p90, reason, detail }, runs
end
