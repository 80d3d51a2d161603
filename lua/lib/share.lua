-- lib/share: decide whose turn it is. While slots are free, a prediction goes straight into a stream. Else it joins its
-- account's backlog. A claim that finds the streams empty admits the oldest prediction of the account with the least virtual
-- time (served cost ÷ weight). An entry put into a stream before its turn would be served out of turn.
--
-- uses keys:     clock, now, queue, record, stream
-- uses records:  TERMINAL, read
-- uses ready:    add_entry, choose_stream, offer, ring, with_bit
-- uses pending:  add_to, add_to_backlog, clocks, corrections, count, count_ready, counted, ended_of, joining,
--                removals, set, write_counts, write_removals
-- uses estimate: expected_charge

share.LANES = { 'high', 'normal', 'low' }
-- What waits in the lane `idle` goes only while a claim finds nothing in the others. Release 0.3.0 claims none of it.
share.ALL_LANES = { 'high', 'normal', 'low', 'idle' }
share.LOOK_AHEAD = 8 -- entries of the account's backlog that are read at once, or searched for a warm affinity key

function share.backlog(queue, lane, account) return keys.queue(queue, 'backlog:' .. lane .. ':' .. account) end

-- Most queues have no limits, pauses and hours: one command tells so (`any`). This is read once, since a script runs alone.
share.asked = {}
function share.has_any(queue, what)
  local found = share.asked[queue]
  if not found then
    local limits, held, suspended = keys.queue(queue, 'limits'), keys.queue(queue, 'held'), keys.queue(queue, 'suspended')
    local hours = keys.queue(queue, 'hours')
    found = { any = redis.call('EXISTS', limits, held, suspended, hours) > 0 }
    if found.any then
      found.limits, found.hours = redis.call('EXISTS', limits) == 1, redis.call('EXISTS', hours) == 1
      found.held, found.suspended = redis.call('EXISTS', held) == 1, redis.call('EXISTS', suspended) == 1
    end
    share.asked[queue] = found
  end
  return found[what]
end

-- Limits that came with a submit count before they are written.
share.brought = {}

-- (weight, most running or nil) of an account.
function share.limits_of(queue, account)
  if share.brought[account] then return unpack(share.brought[account], 1, 2) end
  local text = share.has_any(queue, 'limits') and redis.call('HGET', keys.queue(queue, 'limits'), account)
  if not text then return 1, nil end
  local weight, most = string.match(text, '^(%S+) (%S*) ')
  return tonumber(weight), tonumber(most)
end

-- Each submit brings its account's limits. Returns the text to write, or nil. `revision` counts an operator's changes:
-- an older one, which an API may have for a few seconds, changes nothing.
function share.bring_limits(queue, account, weight, most_running, revision)
  local text = weight .. ' ' .. most_running .. ' ' .. revision
  local known = share.has_any(queue, 'limits') and redis.call('HGET', keys.queue(queue, 'limits'), account) or '1  0'
  if known == text or tonumber(string.match(known, '%S+$')) > tonumber(revision) then return nil end
  share.brought[account] = { tonumber(weight), tonumber(most_running) }
  return text
end

function share.write_limits(queue, account, text)
  local key = keys.queue(queue, 'limits')
  if text == '1  0' then
    redis.call('HDEL', key, account)
  else
    redis.call('HSET', key, account, text)
  end
  share.asked[queue].any, share.asked[queue].limits = true, true
end

function share.is_suspended(queue, account)
  return share.has_any(queue, 'suspended') and redis.call('HEXISTS', keys.queue(queue, 'suspended'), account) == 1
end

function share.is_held(queue, account)
  return share.is_suspended(queue, account) or (share.has_any(queue, 'held') and redis.call('SISMEMBER', keys.queue(queue, 'held'), account) == 1)
end

-- {p}:q:<queue>:hours  account, '' for the whole queue -> '<revision> <hours>|<from>-<to> …': when it is closed, in ms and in order
-- {p}:q:<queue>:opens  the same -> when the first of these that is not over ends

-- Return the end of the first closure that is not over, whether it has begun, and the zone of the hours; nil without any.
-- After the last one it is open, until a create or a keeper brings more.
share.hours = {} -- texts, read once, since a script runs alone
function share.next_opening(queue, account, now)
  local text = share.hours[queue .. account] or redis.call('HGET', keys.queue(queue, 'hours'), account) or ''
  share.hours[queue .. account] = text
  local zone, closures = string.match(text, '(%S*)|(.*)$')
  for from, to in string.gmatch(closures or '', '(%d+)%-(%d+)') do
    if now < tonumber(to) then return tonumber(to), now >= tonumber(from), zone end
  end
end

-- Return when its hours begin, and their zone; nil while they are open. By the clock: no process has to open them.
function share.closed_until(queue, account)
  if not share.has_any(queue, 'hours') then return nil end
  local to, is_closed, zone = share.next_opening(queue, account, keys.now or keys.clock(''))
  if is_closed then return to, zone end
end

-- True if one more prediction of this account may run now.
function share.may_run(queue, account)
  if not share.has_any(queue, 'any') and not share.brought[account] then return true end
  if share.is_held(queue, account) or share.closed_until(queue, account) then return false end
  local _, most = share.limits_of(queue, account)
  return not most or pending.counted(queue, 'running', account) < most
end

-- A script that admits several moves the clock with each and writes it once. It then drops debts without meaning.
function share.write_clocks(queue)
  for lane, own in pairs(pending.clocks) do
    pending.set('clock:' .. lane, own)
    redis.call('ZREMRANGEBYSCORE', keys.queue(queue, 'debt:' .. lane), '-inf', own)
  end
end

function share.lane_clock(queue, lane)
  return pending.clocks[lane] or tonumber(redis.call('HGET', keys.queue(queue, 'meta'), 'clock:' .. lane) or 0)
end

-- Take charges of this much virtual time off what an account has of runs that have not ended. Returns how much of it there
-- was: what was forgotten is not given back. With the account's last run goes what is left: after a change of its weight,
-- or runs that a former release ended.
share.LEAST_CHARGE = 0.000001
-- Since an account last came into the hash. Release 0.3.0 ends runs without it, and would leave it for ever. One account
-- alone that never rests loses as much as its slots hold, once.
share.CHARGED_MS = 7 * 24 * 3600 * 1000
function share.settle(queue, lane, account, by)
  local charged = keys.queue(queue, 'charged:' .. lane)
  local known = tonumber(redis.call('HGET', charged, account) or 0)
  if known == 0 then return 0 end
  if known - by < share.LEAST_CHARGE or pending.counted(queue, 'running', account) <= 0 then
    redis.call('HDEL', charged, account)
  else
    redis.call('HSET', charged, account, known - by)
  end
  return math.min(known, by)
end

-- Keep the virtual time of an account without a turn only while it is ahead of the lane's: else it has no meaning.
function share.keep_debt(queue, lane, account, own)
  if own > share.lane_clock(queue, lane) then
    redis.call('ZADD', keys.queue(queue, 'debt:' .. lane), own, account)
  else
    redis.call('ZREM', keys.queue(queue, 'debt:' .. lane), account)
  end
end

-- The accounts of a lane with the least virtual time, as a flat list with their times, and what each of these has of runs
-- that have not ended.
function share.read_least(queue, lane, most)
  local least, names = redis.call('ZRANGE', keys.queue(queue, 'vtime:' .. lane), 0, most - 1, 'WITHSCORES'), {}
  for i = 1, #least, 2 do names[#names + 1] = least[i] end
  return least, #names > 0 and redis.call('HMGET', keys.queue(queue, 'charged:' .. lane), unpack(names)) or names
end

-- The least virtual time that corrections could leave the account whose turn it is: as if none of its runs that have not
-- ended used anything. One that begins here is not passed by an account that was charged too much. It is not the least of
-- all accounts: those with long runs that go on stay far behind theirs, and each newcomer would get as much of a start.
function share.floor_of(least, charged) return least[2] - (charged[1] or 0) end

-- The virtual time at which an account begins that has none.
function share.start_of(queue, lane)
  local least, charged = share.read_least(queue, lane, 1)
  return #least > 0 and share.floor_of(least, charged) or share.lane_clock(queue, lane)
end

-- Give turns to an account that has a backlog and may run. Time before it came is not owed. Returns true if it is new.
function share.join_turns(queue, lane, account)
  local vtime, debt = keys.queue(queue, 'vtime:' .. lane), keys.queue(queue, 'debt:' .. lane)
  if redis.call('ZSCORE', vtime, account) then return false end
  local own = redis.call('ZSCORE', debt, account)
  if own then redis.call('ZREM', debt, account) end
  redis.call('ZADD', vtime, math.max(own or -math.huge, share.start_of(queue, lane)), account)
  return true
end

function share.leave_turns(queue, lane, account)
  local vtime = keys.queue(queue, 'vtime:' .. lane)
  local own = redis.call('ZSCORE', vtime, account)
  if not own then return end
  redis.call('ZREM', vtime, account)
  if redis.call('EXISTS', vtime) == 0 then -- no account waits for a turn: past service is forgotten
    redis.call('DEL', keys.queue(queue, 'debt:' .. lane), keys.queue(queue, 'charged:' .. lane))
    redis.call('HDEL', keys.queue(queue, 'meta'), 'clock:' .. lane)
    pending.clocks[lane] = nil
  else
    share.keep_debt(queue, lane, account, tonumber(own))
  end
end

-- Replace charges of an account by the seconds of its runs, one after the other: {seconds, charge}. Its virtual time moves
-- while there is another account to compare with.
function share.correct(queue, lane, account, all)
  local vtime, weight, charged = keys.queue(queue, 'vtime:' .. lane), share.limits_of(queue, account), 0
  for _, each in ipairs(all) do charged = charged + each[2] end
  local back = share.settle(queue, lane, account, charged / weight)
  local own, least = redis.call('ZSCORE', vtime, account), -math.huge
  local has_turns = own
  if not has_turns then
    if redis.call('EXISTS', vtime) == 0 then return end
    own, least = redis.call('ZSCORE', keys.queue(queue, 'debt:' .. lane), account) or 0, share.lane_clock(queue, lane)
  end
  for _, each in ipairs(all) do
    local taken = math.min(back, each[2] / weight)
    own, back = math.max(own, least) + each[1] / weight - taken, back - taken
  end
  if has_turns then
    redis.call('ZADD', vtime, own, account)
  else
    share.keep_debt(queue, lane, account, own)
  end
end

-- Returns true if it was there.
function share.take_from_backlog(id, r)
  local backlog = share.backlog(r.queue, r.lane, r.account)
  if redis.call('ZREM', backlog, id) == 0 then return false end
  pending.count('meta', 'backlogged:' .. r.lane, -1)
  if redis.call('EXISTS', backlog) == 0 then share.leave_turns(r.queue, r.lane, r.account) end
  return true
end

-- Whether an account may run may have changed: give it turns in all its lanes, or in none. This is done at once, not by
-- claims: a claim looks at a bounded number of accounts, and finds no work if all of these are at their limits.
function share.update_turns(queue, account)
  local may = share.may_run(queue, account)
  for _, lane in ipairs(share.ALL_LANES) do
    if not may then
      share.leave_turns(queue, lane, account)
    elseif redis.call('EXISTS', share.backlog(queue, lane, account)) == 1 and share.join_turns(queue, lane, account) then
      ready.ring(queue)
    end
  end
end

-- One more of the account's runs, or one less. Only an account with limits can reach one.
function share.note_running(queue, account)
  local _, most = share.limits_of(queue, account)
  if most then share.update_turns(queue, account) end
end

-- Its hours were set, or have begun: note when they begin again, and give it turns or none. That they end needs no step: a
-- claim that comes to its turn takes the turns away.
function share.note_hours(queue, account)
  local opens = keys.queue(queue, 'opens')
  local to = share.next_opening(queue, account, keys.now)
  if to then
    redis.call('ZADD', opens, to, account)
  else
    redis.call('ZREM', opens, account)
  end
  if account ~= '' then
    share.update_turns(queue, account)
  elseif not share.closed_until(queue, '') then
    ready.ring(queue)
  end
end

-- text: nil or false where they are taken back
function share.write_hours(queue, account, text)
  if text then
    redis.call('HSET', keys.queue(queue, 'hours'), account, text)
  else
    redis.call('HDEL', keys.queue(queue, 'hours'), account)
  end
  share.asked[queue], share.hours[queue .. account] = nil, nil
  share.note_hours(queue, account)
end

-- Give turns to accounts whose hours have begun, to some in each call.
share.MOST_OPENED = 16
function share.open_due(queue, now)
  if not share.has_any(queue, 'hours') then return end
  local due = redis.call('ZRANGEBYSCORE', keys.queue(queue, 'opens'), '-inf', now, 'LIMIT', 0, share.MOST_OPENED)
  for _, account in ipairs(due) do share.note_hours(queue, account) end
  if #due > 0 then redis.call('HSET', keys.queue(queue, 'meta'), 'moved_at', now) end
end

-- ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────────

-- Read what decides about a new prediction: the lane's backlogs and streams, and the queue's slots, claims and streams.
function share.look_at_lane(queue, lane)
  local m = redis.call('HMGET', keys.queue(queue, 'meta'), 'backlogged:' .. lane, 'ready:' .. lane, 'slots', 'mask:' .. lane,
    'streams')
  return { backlogged = tonumber(m[1] or 0), ready = tonumber(m[2] or 0), slots = tonumber(m[3] or 0),
    claimed = redis.call('ZCARD', keys.queue(queue, 'lease')), mask = tonumber(m[4] or 0), streams = m[5] }
end

-- True if no account waits for a turn in the lane, and a slot is free beyond the ready entries.
function share.is_calm(look)
  return look.backlogged <= 0 and look.ready < math.max(1, look.slots - look.claimed)
end

-- Put a waiting prediction in line. Returns its stream and entry, '' in a backlog: idle work is always there, since an entry
-- may go before what comes later. A prediction that was handed out before goes to the head of its account's backlog, by its
-- arrival. `look`: the result of share.look_at_lane, if at hand; it is kept up to date. What predictions share is written by
-- share.flush.
share.backlog_depths, share.has_turns = {}, {}
function share.file(id, r, look)
  local queue, lane, account = r.queue, r.lane, r.account
  local may = share.may_run(queue, account)
  if may then look = look or share.look_at_lane(queue, lane) end
  if may and lane ~= 'idle' and share.is_calm(look) then
    local number, mid = ready.add_entry(id, r, ready.choose_stream(r, look))
    look.ready = look.ready + 1
    if look.depth then look.depth[number] = (look.depth[number] or 0) + 1 end
    pending.count_ready(r, 1)
    ready.offer(queue, lane, number, look.mask)
    look.mask = ready.with_bit(look.mask, number)
    return number, mid
  end
  local backlog = share.backlog(queue, lane, account)
  pending.add_to_backlog(backlog, id, r)
  if look then look.backlogged = look.backlogged + 1 end
  if share.backlog_depths[backlog] then share.backlog_depths[backlog] = share.backlog_depths[backlog] + 1 end
  if may then
    if not share.has_turns[backlog] then share.join_turns(queue, lane, account) end
    share.has_turns[backlog] = true
    ready.ring(queue)
  end
  return '', ''
end

-- Write the ids that join backlogs. Their counts are written later.
function share.write_joining()
  for backlog, line in pairs(pending.joining) do
    pending.count('meta', 'backlogged:' .. line.lane, redis.call('ZADD', backlog, unpack(line)))
    pending.joining[backlog] = nil
  end
end

-- Write what the steps so far hold back: at the script's end, and before anything that reads it. Removals are last: after a
-- fault of what predictions share, each is still live and has its lease.
function share.flush(queue)
  share.write_joining()
  for lane, of in pairs(pending.corrections) do
    for account, all in pairs(of) do share.correct(queue, lane, account, all) end
    pending.corrections[lane] = nil
  end
  pending.write_counts(queue)
  for account in pairs(pending.ended_of) do
    share.note_running(queue, account)
    pending.ended_of[account] = nil
  end
  pending.write_removals(queue)
end

-- Put it in line as share.file does, and write what that changes. Returns fields for the record.
function share.file_now(id, r)
  local stream, mid = share.file(id, r)
  share.flush(r.queue)
  return { 'stream', stream, 'mid', mid, 'charged', '' }
end

function share.count_now(queue, what, account, by)
  pending.count(what, account, by)
  share.flush(queue)
end

-- Remove it from its place for good. share.flush writes this.
function share.take_away(id, r)
  if r.mid == '' then return share.take_from_backlog(id, r) end
  pending.add_to(pending.removals, keys.stream(r.queue, r.lane, r.stream), r.mid)
  if r.token == '' then pending.count_ready(r, -1) end
end

share.EMPTY_LINE = {}

-- The turns of a lane: its accounts with the least virtual time, each with the first entries of its backlog. They are read
-- once, played forward, and written once. As many turns can be given as accounts were read: no other's time comes before.
function share.read_turns(queue, lane, most)
  local least, charged = share.read_least(queue, lane, most)
  local turns = { floor = #least > 0 and share.floor_of(least, charged) }
  for i = 1, #least, 2 do
    turns[#turns + 1] = { account = least[i], own = tonumber(least[i + 1]), charged = tonumber(charged[(i + 1) / 2] or 0),
      line = share.EMPTY_LINE, admitted = {}, backlog = share.backlog(queue, lane, least[i]), is_whole = false,
      has_moved = false, is_over = false }
  end
  turns.length = math.max(share.LOOK_AHEAD, math.floor(2 * most / #least) + 1)
  return turns
end

function share.least_of(turns)
  local best
  for _, turn in ipairs(turns) do
    local is_tied = best and turn.own == best.own and turn.account < best.account
    if not turn.is_over and (not best or turn.own < best.own or is_tied) then best = turn end
  end
  return best
end

function share.write_line(turn)
  if #turn.admitted > 0 then redis.call('ZREM', turn.backlog, unpack(turn.admitted)) end
  turn.line, turn.admitted, turn.is_whole = share.EMPTY_LINE, #turn.admitted > 0 and {} or turn.admitted, false
end

function share.line_of(turn, length)
  if #turn.line == 0 and not turn.is_whole then
    share.write_line(turn)
    turn.line = redis.call('ZRANGE', turn.backlog, 0, length - 1)
    turn.is_whole = #turn.line < length
  end
  return turn.line
end

function share.write_turns(queue, lane, turns)
  local moved, charged = {}, {}
  for _, turn in ipairs(turns) do
    share.write_line(turn)
    if turn.has_moved then
      local n = #moved
      moved[n + 1], moved[n + 2] = turn.own, turn.account
      charged[n + 1], charged[n + 2] = turn.account, turn.charged
    end
  end
  if #moved > 0 then
    redis.call('ZADD', keys.queue(queue, 'vtime:' .. lane), unpack(moved))
    local hash = keys.queue(queue, 'charged:' .. lane)
    if redis.call('HSET', hash, unpack(charged)) > 0 then redis.call('PEXPIRE', hash, share.CHARGED_MS) end
  end
  for _, turn in ipairs(turns) do
    if turn.is_over then share.leave_turns(queue, lane, turn.account) end
  end
end

-- The place in line of the next one: the first; or among the first few, the first with the affinity key `warm`.
function share.next_in_line(turn, length, warm)
  if warm == '' then return 1 end
  share.write_line(turn)
  local line = share.line_of(turn, length)
  for i = 1, math.min(#line, share.LOOK_AHEAD) do
    if redis.call('HGET', keys.record(line[i]), 'affinity') == warm then return i end
  end
  return 1
end

-- Admit up to `most` predictions of a lane in turn, and charge their expected time. The lane's streams are empty, so any
-- stream of a shard will do. Places are noted in the records: the caller writes these, the counts and, at its end, the
-- clock. Returns records with `id`, how many it looked at, and true if no account has a turn. Moves what is out of place: a
-- account that may not run now, an id that does not wait.
function share.admit(queue, lane, warm, most, looks, streams, fits)
  local admitted, looked, turns, is_last = {}, 0, nil, false
  while #admitted < most and looked < looks do
    turns = turns or share.read_turns(queue, lane, most - #admitted)
    local turn = share.least_of(turns)
    is_last = not turn
    if is_last then break end
    local account, place = turn.account, share.next_in_line(turn, turns.length, warm)
    local id = share.line_of(turn, turns.length)[place]
    local r, may = id and records.read(id), share.may_run(queue, account)
    looked = looked + 1
    if id and may and r and not records.TERMINAL[r.status] and r.token == '' and r.mid == '' then
      if not fits(tonumber(r.cost)) then break end
      r.stream, r.mid = ready.add_entry(id, r, string.match(r.shard, '%d+') % streams)
      r.charged = estimate.expected_charge(r)
      local charge = r.charged / share.limits_of(queue, account)
      pending.clocks[lane] = turns.floor
      turn.own, turn.charged, turn.has_moved = turn.own + charge, turn.charged + charge, true
      turn.admitted[#turn.admitted + 1] = table.remove(turn.line, place)
      turn.is_over = #share.line_of(turn, turns.length) == 0
      pending.count('meta', 'backlogged:' .. lane, -1)
      pending.count_ready(r, 1)
      r.id = id
      admitted[#admitted + 1] = r
    else
      share.write_turns(queue, lane, turns)
      turns = nil
      if id and may then
        share.take_from_backlog(id, { queue = queue, lane = lane, account = account })
      else
        share.leave_turns(queue, lane, account)
      end
    end
  end
  if turns then share.write_turns(queue, lane, turns) end
  return admitted, looked, is_last
end
