-- lib/share: decide whose turn it is. While slots are free, a prediction goes straight into a stream. Else it joins its
-- tenant's backlog. A claim that finds the streams empty admits the oldest prediction of the tenant with the least virtual
-- time (served cost ÷ weight). An entry put into a stream before its turn would be served out of turn.
-- Needs lib/keys, lib/place, lib/estimate.

local LANES = { 'high', 'normal', 'low' }
local LOOK_AHEAD = 8 -- entries of the tenant's backlog that are read at once, or searched for a warm affinity key

local function backlog_key(queue, lane, tenant) return queue_key(queue, 'backlog:' .. lane .. ':' .. tenant) end

-- Most queues have no limits and pauses: one command tells so. This is read once, since a script runs alone.
local asked = {}
local function has_any(queue, what)
  local found = asked[queue]
  if not found then
    local limits, held, suspended = queue_key(queue, 'limits'), queue_key(queue, 'held'), queue_key(queue, 'suspended')
    found = {}
    if redis.call('EXISTS', limits, held, suspended) > 0 then
      found.limits = redis.call('EXISTS', limits) == 1
      found.held, found.suspended = redis.call('EXISTS', held) == 1, redis.call('EXISTS', suspended) == 1
    end
    asked[queue] = found
  end
  return found[what]
end

-- Limits that came with a submit count before they are written.
local brought = {}

-- (weight, most running or nil) of a tenant.
local function limits_of(queue, tenant)
  if brought[tenant] then return unpack(brought[tenant], 1, 2) end
  local text = has_any(queue, 'limits') and redis.call('HGET', queue_key(queue, 'limits'), tenant)
  if not text then return 1, nil end
  local weight, most = string.match(text, '^(%S+) (%S*) ')
  return tonumber(weight), tonumber(most)
end

-- Each submit brings its account's limits. Returns the text to write, or nil. `revision` counts an operator's changes:
-- an older one, which an API may have for a few seconds, changes nothing.
local function bring_limits(queue, tenant, weight, most_running, revision)
  local text = weight .. ' ' .. most_running .. ' ' .. revision
  local known = has_any(queue, 'limits') and redis.call('HGET', queue_key(queue, 'limits'), tenant) or '1  0'
  if known == text or tonumber(string.match(known, '%S+$')) > tonumber(revision) then return nil end
  brought[tenant] = { tonumber(weight), tonumber(most_running) }
  return text
end

local function write_limits(queue, tenant, text)
  local key = queue_key(queue, 'limits')
  if text == '1  0' then
    redis.call('HDEL', key, tenant)
  else
    redis.call('HSET', key, tenant, text)
  end
  asked[queue].limits = true
end

local function is_suspended(queue, tenant)
  return has_any(queue, 'suspended') and redis.call('HEXISTS', queue_key(queue, 'suspended'), tenant) == 1
end

local function is_held(queue, tenant)
  return is_suspended(queue, tenant) or (has_any(queue, 'held') and redis.call('SISMEMBER', queue_key(queue, 'held'), tenant) == 1)
end

-- True if one more prediction of this tenant may run now.
local function may_run(queue, tenant)
  if is_held(queue, tenant) then return false end
  local _, most = limits_of(queue, tenant)
  return not most or counted(queue, 'running', tenant) < most
end

-- ── virtual time ─────────────────────────────────────────────────────────────────────────────────────────────────

-- A script that admits several moves the clock with each and writes it once. It then drops debts without meaning.
local clocks = {}
local function write_clocks(queue)
  for lane, own in pairs(clocks) do
    set_later('clock:' .. lane, own)
    redis.call('ZREMRANGEBYSCORE', queue_key(queue, 'debt:' .. lane), '-inf', own)
  end
end

local function lane_clock(queue, lane)
  return clocks[lane] or tonumber(redis.call('HGET', queue_key(queue, 'meta'), 'clock:' .. lane) or 0)
end

-- Keep the virtual time of a tenant without a turn only while it is ahead of the lane's: else it has no meaning.
local function keep_debt(queue, lane, tenant, own)
  if own > lane_clock(queue, lane) then
    redis.call('ZADD', queue_key(queue, 'debt:' .. lane), own, tenant)
  else
    redis.call('ZREM', queue_key(queue, 'debt:' .. lane), tenant)
  end
end

-- Give turns to a tenant that has a backlog and may run. Time before it came is not owed. Returns true if it is new.
local function join(queue, lane, tenant)
  local vtime, debt = queue_key(queue, 'vtime:' .. lane), queue_key(queue, 'debt:' .. lane)
  if redis.call('ZSCORE', vtime, tenant) then return false end
  local own = redis.call('ZSCORE', debt, tenant)
  if own then redis.call('ZREM', debt, tenant) end
  redis.call('ZADD', vtime, math.max(own or 0, lane_clock(queue, lane)), tenant)
  return true
end

local function part(queue, lane, tenant)
  local vtime = queue_key(queue, 'vtime:' .. lane)
  local own = redis.call('ZSCORE', vtime, tenant)
  if not own then return end
  redis.call('ZREM', vtime, tenant)
  if redis.call('EXISTS', vtime) == 0 then -- no tenant waits for a turn: past service is forgotten
    redis.call('DEL', queue_key(queue, 'debt:' .. lane))
    redis.call('HDEL', queue_key(queue, 'meta'), 'clock:' .. lane)
    clocks[lane] = nil
  else
    keep_debt(queue, lane, tenant, tonumber(own))
  end
end

-- Move a tenant's virtual time by these seconds, one after the other, while there is another tenant to compare with.
local function owe(queue, lane, tenant, ...)
  local vtime, weight = queue_key(queue, 'vtime:' .. lane), limits_of(queue, tenant)
  local own, least = redis.call('ZSCORE', vtime, tenant), -math.huge
  local has_turns = own
  if not has_turns then
    if redis.call('EXISTS', vtime) == 0 then return end
    own, least = redis.call('ZSCORE', queue_key(queue, 'debt:' .. lane), tenant) or 0, lane_clock(queue, lane)
  end
  for i = 1, select('#', ...) do own = math.max(own, least) + select(i, ...) / weight end
  if has_turns then
    redis.call('ZADD', vtime, own, tenant)
  else
    keep_debt(queue, lane, tenant, own)
  end
end

-- Replace the charge from entering the streams by the real time.
local corrections = {}
local function correct(r, seconds)
  if r.charged == '' then return end
  corrections[r.lane] = corrections[r.lane] or {}
  gather(corrections[r.lane], r.account, seconds - r.charged)
end

-- ── the backlog ──────────────────────────────────────────────────────────────────────────────────────────────────

-- Ids that join backlogs are written once for each backlog.
local joining = {}
local function into_backlog_later(backlog, id, r)
  local line = joining[backlog] or { lane = r.lane }
  joining[backlog] = line
  line[#line + 1] = tonumber(r.arrival)
  line[#line + 1] = id
end

-- Returns true if it was there.
local function out_of_backlog(id, r)
  local backlog = backlog_key(r.queue, r.lane, r.account)
  if redis.call('ZREM', backlog, id) == 0 then return false end
  count_later('meta', 'backlogged:' .. r.lane, -1)
  if redis.call('EXISTS', backlog) == 0 then part(r.queue, r.lane, r.account) end
  return true
end

-- Whether a tenant may run may have changed: give it turns in all its lanes, or in none. This is done at once, not by
-- claims: a claim looks at a bounded number of tenants, and finds no work if all of these are at their limits.
local function join_or_part(queue, tenant)
  local may = may_run(queue, tenant)
  for _, lane in ipairs(LANES) do
    if not may then
      part(queue, lane, tenant)
    elseif redis.call('EXISTS', backlog_key(queue, lane, tenant)) == 1 and join(queue, lane, tenant) then
      ring(queue)
    end
  end
end

-- One more of the tenant's runs, or one less. Only a tenant with limits can reach one.
local function note_running(queue, tenant)
  local _, most = limits_of(queue, tenant)
  if most then join_or_part(queue, tenant) end
end

-- ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────────

-- Read what decides about a new prediction: the lane's backlogs and streams, and the queue's slots, claims and streams.
local function look_at_lane(queue, lane)
  local m = redis.call('HMGET', queue_key(queue, 'meta'), 'backlogged:' .. lane, 'ready:' .. lane, 'slots', 'mask:' .. lane,
    'streams')
  return { backlogged = tonumber(m[1] or 0), ready = tonumber(m[2] or 0), slots = tonumber(m[3] or 0),
    claimed = redis.call('ZCARD', queue_key(queue, 'lease')), mask = tonumber(m[4] or 0), streams = m[5] }
end

-- True if no tenant waits for a turn in the lane, and a slot is free beyond the ready entries.
local function is_calm(look)
  return look.backlogged <= 0 and look.ready < math.max(1, look.slots - look.claimed)
end

-- Put a waiting prediction in line. Returns its stream and entry, '' in a backlog. A prediction that was handed out before
-- goes to the head of its tenant's backlog, by its arrival. `look`: the result of look_at_lane, if at hand; it is kept up
-- to date. What predictions share is written by write_shared.
local backlog_depths, has_turns = {}, {}
local function file_later(id, r, look)
  local queue, lane, tenant = r.queue, r.lane, r.account
  local may = may_run(queue, tenant)
  if may then look = look or look_at_lane(queue, lane) end
  if may and is_calm(look) then
    local number, mid = put(id, r, stream_for(r, look))
    look.ready = look.ready + 1
    if look.depth then look.depth[number] = (look.depth[number] or 0) + 1 end
    count_ready(r, 1)
    offer(queue, lane, number, look.mask)
    look.mask = with_bit(look.mask, number)
    return number, mid
  end
  local backlog = backlog_key(queue, lane, tenant)
  into_backlog_later(backlog, id, r)
  if look then look.backlogged = look.backlogged + 1 end
  if backlog_depths[backlog] then backlog_depths[backlog] = backlog_depths[backlog] + 1 end
  if may then
    if not has_turns[backlog] then join(queue, lane, tenant) end
    has_turns[backlog] = true
    ring(queue)
  end
  return '', ''
end

-- Write what the steps so far hold back: at the script's end, and before anything that reads it. Removals are last: after a
-- fault of what predictions share, each is still live and has its lease.
local ended_of = {} -- tenants
local function write_shared(queue)
  for backlog, line in pairs(joining) do
    count_later('meta', 'backlogged:' .. line.lane, redis.call('ZADD', backlog, unpack(line)))
    joining[backlog] = nil
  end
  for lane, of in pairs(corrections) do
    for tenant, all in pairs(of) do owe(queue, lane, tenant, unpack(all)) end
    corrections[lane] = nil
  end
  write_counts(queue)
  for tenant in pairs(ended_of) do
    note_running(queue, tenant)
    ended_of[tenant] = nil
  end
  write_removals(queue)
end

-- Put it in line as file_later does, and write what that changes. Returns fields for the record.
local function file(id, r)
  local stream, mid = file_later(id, r)
  write_shared(r.queue)
  return { 'stream', stream, 'mid', mid, 'charged', '' }
end

local function count(queue, what, tenant, by)
  count_later(what, tenant, by)
  write_shared(queue)
end

-- Remove it from its place for good. write_shared writes this.
local function unplace(id, r)
  if r.mid == '' then return out_of_backlog(id, r) end
  gather(leaving, stream_key(r.queue, r.lane, r.stream), r.mid)
  if r.token == '' then count_ready(r, -1) end
end

local EMPTY_LINE = {}

-- The turns of a lane: its tenants with the least virtual time, each with the first entries of its backlog. They are read
-- once, played forward, and written once. As many turns can be given as tenants were read: no other's time comes before.
local function read_turns(queue, lane, most)
  local turns, least = {}, redis.call('ZRANGE', queue_key(queue, 'vtime:' .. lane), 0, most - 1, 'WITHSCORES')
  for i = 1, #least, 2 do
    turns[#turns + 1] = { tenant = least[i], own = tonumber(least[i + 1]), line = EMPTY_LINE, admitted = {},
      backlog = backlog_key(queue, lane, least[i]), is_whole = false, has_moved = false, is_over = false }
  end
  turns.length = math.max(LOOK_AHEAD, math.floor(2 * most / #least) + 1)
  return turns
end

local function least_of(turns)
  local best
  for _, turn in ipairs(turns) do
    local is_tied = best and turn.own == best.own and turn.tenant < best.tenant
    if not turn.is_over and (not best or turn.own < best.own or is_tied) then best = turn end
  end
  return best
end

local function write_line(turn)
  if #turn.admitted > 0 then redis.call('ZREM', turn.backlog, unpack(turn.admitted)) end
  turn.line, turn.admitted, turn.is_whole = EMPTY_LINE, #turn.admitted > 0 and {} or turn.admitted, false
end

local function line_of(turn, length)
  if #turn.line == 0 and not turn.is_whole then
    write_line(turn)
    turn.line = redis.call('ZRANGE', turn.backlog, 0, length - 1)
    turn.is_whole = #turn.line < length
  end
  return turn.line
end

local function write_turns(queue, lane, turns)
  local moved = {}
  for _, turn in ipairs(turns) do
    write_line(turn)
    if turn.has_moved then
      moved[#moved + 1] = turn.own
      moved[#moved + 1] = turn.tenant
    end
  end
  if #moved > 0 then redis.call('ZADD', queue_key(queue, 'vtime:' .. lane), unpack(moved)) end
  for _, turn in ipairs(turns) do
    if turn.is_over then part(queue, lane, turn.tenant) end
  end
end

-- The place in line of the next one: the first; or among the first few, the first with the affinity key `warm`.
local function place_of_next(turn, length, warm)
  if warm == '' then return 1 end
  write_line(turn)
  local line = line_of(turn, length)
  for i = 1, math.min(#line, LOOK_AHEAD) do
    if redis.call('HGET', record_key(line[i]), 'affinity') == warm then return i end
  end
  return 1
end

-- The fields that decide about handing out, '' if absent, with the record as it was read; nil without a record.
local function read_waiting(id)
  local flat = redis.call('HGETALL', record_key(id))
  if #flat == 0 then return nil end
  local r = { status = '', mid = '', token = '', deadline = '', start_by = '', begun = '', claims = '', account = '',
    attempt = '', charged = '', stream = '', arrival = '', cost = '', lane = '', queue = '', affinity = '', eta50 = '',
    eta90 = '', runs = '', created = '', revivals = '', shard = '' }
  for i = 1, #flat, 2 do
    if r[flat[i]] then r[flat[i]] = flat[i + 1] end
  end
  r.flat = flat
  return r
end

-- Admit up to `most` predictions of a lane in turn, and charge their expected time. The lane's streams are empty, so any
-- stream of a shard will do. Places are noted in the records: the caller writes these, the counts and, at its end, the
-- clock. Returns records with `id`, how many it looked at, and true if no tenant has a turn. Moves what is out of place: a
-- tenant that may not run now, an id that does not wait.
local function admit_in_turn(queue, lane, warm, most, looks, streams, fits)
  local admitted, looked, turns, is_last = {}, 0, nil, false
  while #admitted < most and looked < looks do
    turns = turns or read_turns(queue, lane, most - #admitted)
    local turn = least_of(turns)
    is_last = not turn
    if is_last then break end
    local tenant, place = turn.tenant, place_of_next(turn, turns.length, warm)
    local id = line_of(turn, turns.length)[place]
    local r, may = id and read_waiting(id), may_run(queue, tenant)
    looked = looked + 1
    if id and may and r and not TERMINAL[r.status] and r.token == '' and r.mid == '' then
      if not fits(tonumber(r.cost)) then break end
      r.stream, r.mid = put(id, r, string.match(r.shard, '%d+') % streams)
      r.charged = expected_s(r)
      clocks[lane] = turn.own
      turn.own, turn.has_moved = turn.own + r.charged / limits_of(queue, tenant), true
      turn.admitted[#turn.admitted + 1] = table.remove(turn.line, place)
      turn.is_over = #line_of(turn, turns.length) == 0
      count_later('meta', 'backlogged:' .. lane, -1)
      count_ready(r, 1)
      r.id = id
      admitted[#admitted + 1] = r
    else
      write_turns(queue, lane, turns)
      turns = nil
      if id and may then
        out_of_backlog(id, { queue = queue, lane = lane, account = tenant })
      else
        part(queue, lane, tenant)
      end
    end
  end
  if turns then write_turns(queue, lane, turns) end
  return admitted, looked, is_last
end
