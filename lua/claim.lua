#!lua flags=allow-oom
-- claim: hand out up to `count` waiting predictions to one consumer, each with a lease and a fencing token. Ends work that
-- is canceled or past its deadline. Looks at no more than 64 entries in all.
--
-- A call 1. answers again if it is repeated, 2. hands out nothing while the queue is paused or its breaker open, 3. takes
-- the lane whose turn it is (8 : 3 : 1) until it has enough, and of the lane `idle` once the others are empty, 4. writes
-- what step 3 gathered. Of a lane it first reads the streams, where entries are ready. Once those are empty it admits
-- predictions from the backlogs: one after the other from the account with the least virtual time. An entry whose prediction
-- has ended, is late or may not run is taken out on the way.
--
-- Commands of a prediction: 19 alone, 4.1 in a batch of 16. Measured with a free slot, without limits, key and webhook.
--
--   KEYS[1]  meta  hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  consumer
--   ARGV[3]  nonce        new for each call, kept when a call is repeated; token = nonce .. '-' .. index
--   ARGV[4]  count
--   ARGV[5]  lease_ms
--   ARGV[6]  most_claims  that one prediction may ever have
--   ARGV[7]  now_ms       '' for the server's clock
--   ARGV[8]  budget       most that all handed out may cost together, '' for no limit
--   ARGV[9]  alone        '1': the first is taken at any cost, so that a large one is not stuck for ever
--   ARGV[10] warm         the affinity key that the consumer served last. Within the account whose turn it is, one of the
--                         first few with this key goes first; '' for none
--   Returns  {state, why, {input, record in the form of records.pack}, …}
--            state: 'ok', 'paused' (also out of its hours), 'open' (the breaker is open), or 'unknown' for a queue that is not
--                   registered
--            why it handed out no more: 'count', 'empty', 'budget' or 'bound' (most entries that one call looks at)
--
-- uses keys:     GROUP, clock, input, queue, record, stream
-- uses records:  TERMINAL, as_reply, pack, past, read, since
-- uses log:      write
-- uses ready:    delivered, next_set, ring, with_bit, without_bit
-- uses pending:  add_to_backlog, correct_charge, count, count_ready, set, write_counts
-- uses estimate: score, write_scores
-- uses share:    LANES, admit, backlog, closed_until, flush, has_any, leave_turns, may_run, note_running, open_due,
--                take_away, write_clocks
-- uses breaker:  is_cool
-- uses spare:    room
-- uses ends:     bury, end_if_late, end_now

local meta, queue, consumer, nonce = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local count, lease_ms, most_claims, now = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), keys.clock(ARGV[7])
local now_text = string.format('%d', now)
local budget, alone, warm = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10]
local SHARES = { high = 8, normal = 3, low = 1 }
local SCAN = 64

local state = redis.call('HMGET', meta, 'streams', 'paused', 'probe', 'breaker', 'open_until', 'cool_ms',
  'mask:high', 'mask:normal', 'mask:low', 'next:high', 'next:normal', 'next:low', 'ready:high', 'ready:normal', 'ready:low',
  'backlogged:high', 'backlogged:normal', 'backlogged:low', 'credit:high', 'credit:normal', 'credit:low',
  'within:high', 'within:normal', 'within:low', 'mask:idle', 'next:idle', 'ready:idle', 'backlogged:idle',
  'slots', 'spare_slots')
local streams, paused, probe, breaker_state, open_until, cool_ms = unpack(state, 1, 6)
if not streams then return { 'unknown' } end

-- ── 1. a repeated call ──────────────────────────────────────────────────────────────────────────────────────────────

-- The reply to this call was lost: answer it again, with what its consumer still holds: those with another token are left
-- out. `last` is written only by calls that handed out something, so the repeat of another call hands out. Why it had ended
-- is not kept.
local last = redis.call('HGET', keys.queue(queue, 'last'), consumer) or ''
if string.match(last, '^%S+') == nonce then
  local again = { 'ok', 'count' }
  for index, id in string.gmatch(last, ' (%d+):(%S+)') do
    local r = records.read(id)
    if r and r.token == nonce .. '-' .. index then again[#again + 1] = { redis.call('GET', keys.input(id)), records.pack(id, r) } end
  end
  return again
end

-- ── 2. may anything be handed out ───────────────────────────────────────────────────────────────────────────────────

if paused == '1' then return { 'paused' } end
share.open_due(queue, now)
if share.closed_until(queue, '') then return { 'paused' } end
-- A probe whose record is gone will never have a result: another prediction tries.
local is_probe = (breaker_state == 'open' and breaker.is_cool(open_until, cool_ms, now))
  or (breaker_state == 'probing' and redis.call('EXISTS', keys.record(probe)) == 0)
if not is_probe and (breaker_state or '') ~= '' then return { 'open' } end
if is_probe then count = math.min(count, 1) end -- 0: a call that only asks for a former answer hands out nothing

-- ── 3. hand out ─────────────────────────────────────────────────────────────────────────────────────────────────────

-- Written at once: what is read from the streams, admitted, ended or put back, and the claim in each record. At the end of
-- the call: leases, counts, clocks, and where reading and credit stand.
--
-- By lane. mask: the streams that may hold work, a bit each. next_stream: where reading goes on. entries_ready, backlogged:
-- how many wait in its streams and in its backlogs. credit: see `pay`. within: its objective in ms, if it has one.
local mask, next_stream, entries_ready, backlogged, credit, within = {}, {}, {}, {}, {}, {}
for i, lane in ipairs(share.LANES) do
  mask[lane], next_stream[lane] = tonumber(state[6 + i] or 0), tonumber(state[9 + i] or 0)
  entries_ready[lane], backlogged[lane] = state[12 + i] or '0', state[15 + i] or '0'
  credit[lane], within[lane] = tonumber(state[18 + i] or 0), tonumber(state[21 + i])
end
mask.idle, next_stream.idle = tonumber(state[25] or 0), tonumber(state[26] or 0)
entries_ready.idle, backlogged.idle = state[27] or '0', state[28] or '0'
-- scanned: how much was looked at: entries, admissions that were tried, and each fault once more. spent: cost of what was
-- handed out. stopped: 'budget' once it is reached. fault: the last error, replied if nothing was handed out.
local scanned, spent, stopped, fault = 0, 0, nil, nil

-- Return the cost of the first undelivered entry of a stream, or nil.
local function head_cost(stream)
  if redis.call('EXISTS', stream) == 0 then return nil end
  local entry = redis.call('XRANGE', stream, '(' .. ready.delivered(stream), '+', 'COUNT', 1)[1]
  return entry and tonumber(entry[2][4])
end

-- Read up to `most` entries of a stream: {entry id, {'id', prediction id, …}}, …
local function read_from(stream, most)
  local reply = redis.pcall('XREADGROUP', 'GROUP', keys.GROUP, consumer, 'COUNT', most, 'STREAMS', stream, '>')
  -- NOGROUP: the first read, or the group was lost. Then all entries come again, and `may_go` judges each by its record:
  -- one that has ended is dropped, one that is claimed stays pending. Another error comes again below, and is raised.
  if reply and reply.err then
    redis.call('XGROUP', 'CREATE', stream, keys.GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', keys.GROUP, consumer, 'COUNT', most, 'STREAMS', stream, '>')
  end
  return reply and reply[1][2] or {}
end

-- Its account is paused, closed or at its limit: return it to its backlog, where its arrival puts it to the head. No attempt is
-- counted. `leave_turns` reads what is gathered, so it is flushed before. The charge is taken back at the end of the call.
local function put_back(id, r)
  share.take_away(id, r)
  pending.add_to_backlog(share.backlog(queue, r.lane, r.account), id, r)
  share.flush(queue)
  share.leave_turns(queue, r.lane, r.account)
  redis.call('HSET', keys.record(id), 'stream', '', 'mid', '', 'charged', '')
  pending.correct_charge(r, 0)
end

-- True if this entry may be handed out. Else end, drop or put it back.
local function may_go(id, r, input, stream, mid)
  if not r or records.TERMINAL[r.status] or r.mid ~= mid then
    redis.call('XACK', stream, keys.GROUP, mid)
    redis.call('XDEL', stream, mid)
    return false
  end
  if r.token ~= '' then return false end -- claimed, only its pending entry was lost: it is pending again, its lease decides
  local is_used_up, may = tonumber(r.claims) >= most_claims, share.may_run(queue, r.account)
  local may_be_late = records.past(r.deadline, now) or records.past(r.start_by, now)
  if input and not may_be_late and not is_used_up and may then return true end
  if ends.end_if_late(id, r, now) then
    return false
  elseif not input then
    ends.end_now(id, r, 'failed', { error = 'Its input is gone.', code = 'input_lost' }, now)
  elseif is_used_up then
    ends.bury(id, r, { error = 'It was handed out too often without ever starting.', code = 'too_many_claims' }, now)
  elseif not share.may_run(queue, r.account) then
    put_back(id, r)
  else
    return true -- it had begun once, so that its `start_by` no longer counts
  end
  return false
end

-- True if it still fits the budget. Else note the budget as the reason to stop.
local function fits(cost)
  if not budget or not cost or spent + cost <= budget or (alone and spent == 0) then return true end
  stopped = 'budget'
  return false
end

-- Count a first start. A revived dead letter has no objective.
local function note_start(r)
  if r.claims ~= '0' then return end
  local waited_ms = math.max(0, now - records.since(r))
  pending.count('tally', 'started', 1)
  if r.revivals ~= '' then return end
  pending.count('tally', 'waited_ms', waited_ms)
  if not within[r.lane] then return end
  pending.count('tally', (waited_ms <= within[r.lane] and 'met:' or 'missed:') .. r.lane, 1)
end

-- One more of its account runs. Only an account with limits can reach one, and that is checked at once.
local function note_claim(r)
  pending.count_ready(r, -1)
  pending.count('queued', r.account, -1)
  pending.count('running', r.account, 1)
  if not share.has_any(queue, 'limits') then return end
  pending.write_counts(queue)
  share.note_running(queue, r.account)
end

-- Write the claim into the record and reply it. The place of one that was admitted just now (`charged` is set) is written
-- with it. What can fail on a bad record comes first.
local remembered, leases = { nonce }, {}
local reply = { 'ok', 'count' }
local function hand_out(stream, mid, id, input, r)
  r = r or records.read(id)
  if not may_go(id, r, input, stream, mid) then return end
  local index, record = string.format('%d', #reply - 1), keys.record(id)
  local token, attempt, handed = nonce .. '-' .. index, string.format('%d', r.attempt + 1), string.format('%d', r.claims + 1)
  spent = spent + r.cost
  estimate.score(r, now)
  note_start(r)
  if r.affinity ~= '' then pending.count('tally', r.affinity == warm and 'warm' or 'cold', 1) end
  note_claim(r)
  leases[#leases + 1] = now + lease_ms
  leases[#leases + 1] = id
  remembered[#remembered + 1] = index .. ':' .. id
  if is_probe then redis.call('HSET', meta, 'breaker', 'probing', 'probe', id) end
  local claim = { 'token', token, 'holder', consumer, 'attempt', attempt, 'claims', handed, 'claimed', now_text }
  if r.charged ~= '' then
    redis.call('HSET', record, 'stream', r.stream, 'mid', mid, 'charged', r.charged, unpack(claim))
  else
    redis.call('HSET', record, unpack(claim))
  end
  log.write('claimed', id, queue, r.account, now_text, consumer .. ' ' .. attempt)
  r.token, r.holder, r.attempt, r.claims, r.claimed = token, consumer, attempt, handed, now_text
  reply[#reply + 1] = { input, records.pack(id, r) }
end

-- A stream was read to its end. After the last one of its lane nothing is ready, even if a lost key made the count wrong.
local function note_empty(lane, number)
  mask[lane] = ready.without_bit(mask[lane], number)
  if mask[lane] ~= 0 or entries_ready[lane] == '0' then return end
  pending.write_counts(queue)
  redis.call('HSET', meta, 'ready:' .. lane, 0)
end

-- Entries that this call read and judges next, with the records of those that it admitted.
local streams_of, mids, ids, admitted_records = {}, {}, {}, {}
local function add_entry(stream, entry, r)
  local i = #ids + 1
  streams_of[i], mids[i], ids[i], admitted_records[i] = stream, entry[1], entry[2][2], r
end

-- Read up to `most` entries of the lane's streams: each stream once, so 7 of three streams are 2, 2 and 3. They are handed
-- out in the order of single reads in turn. With a budget `most` is 1, and only the cost of that one is looked at.
local function read_ready(lane, most)
  local numbers, rest, number = {}, mask[lane], next_stream[lane]
  while rest ~= 0 do
    number = ready.next_set(rest, number)
    rest = ready.without_bit(rest, number)
    numbers[#numbers + 1] = number
  end
  local came, longest = {}, 0
  for i, each in ipairs(numbers) do
    local wanted, stream = math.floor((most + #numbers - i) / #numbers), keys.stream(queue, lane, each)
    if wanted == 0 or (budget and not fits(head_cost(stream))) then break end
    local entries = read_from(stream, wanted)
    came[i], longest = entries, math.max(longest, #entries)
    if #entries > 0 and #entries == longest then next_stream[lane] = (each + 1) % 32 end
    -- A stream with fewer entries than wanted is at its end. The last one of the lane counts so only if the call found nothing:
    -- else the mask would say that nothing is ready while entries of this call are not handed out yet.
    local is_last_with_news = longest > 0 and ready.without_bit(mask[lane], each) == 0
    if #entries < wanted and not is_last_with_news then note_empty(lane, each) end
  end
  for row = 1, longest do
    for i, entries in ipairs(came) do
      if entries[row] then add_entry(keys.stream(queue, lane, numbers[i]), entries[row]) end
    end
  end
end

-- No account has a turn. Without limits, pauses and hours every account with a backlog has one, so then no backlog is left, even if
-- a lost key made the count wrong.
local function clear_backlog_count(lane)
  if backlogged[lane] == '0' or share.has_any(queue, 'any') then return end
  if redis.call('EXISTS', keys.queue(queue, 'vtime:' .. lane)) == 1 then return end
  pending.write_counts(queue)
  redis.call('HSET', meta, 'backlogged:' .. lane, 0)
end

-- Admit up to `most` predictions in turn, and read them. `share.admit` has written the entries, the backlogs and the turns.
-- The records get their places with the claim, or here.
local function admit(lane, most)
  local admitted, looked, is_last = share.admit(queue, lane, warm, most, SCAN - scanned, streams, fits)
  local wanted, came, of = {}, {}, {}
  scanned = scanned + looked
  if is_last then clear_backlog_count(lane) end
  for _, r in ipairs(admitted) do wanted[r.stream] = (wanted[r.stream] or 0) + 1 end
  for number, due in pairs(wanted) do
    local stream = keys.stream(queue, lane, number)
    for _, entry in ipairs(read_from(stream, due)) do
      local place = number .. ' ' .. entry[1]
      came[place], of[place] = entry, stream
    end
  end
  for _, r in ipairs(admitted) do
    local place = r.stream .. ' ' .. r.mid
    if came[place] then
      add_entry(of[place], came[place], r)
      came[place] = nil
    else -- its group was lost, or the stream had entries whose bit of the mask was missing: they are read first
      mask[lane] = ready.with_bit(mask[lane], r.stream)
      redis.call('HSET', keys.record(r.id), 'stream', r.stream, 'mid', r.mid, 'charged', r.charged, 'arrival', r.arrival)
    end
  end
  for place, entry in pairs(came) do add_entry(of[place], entry) end
end

-- Hand out up to `most` of a lane: those that are ready first. Returns whether it handed out any. What fails in one record
-- leaves the others alone: its entry stays pending. It is reported if nothing was handed out.
local function take(lane, most)
  local before = #reply
  repeat
    local is_ready = mask[lane] ~= 0
    streams_of, mids, ids, admitted_records = {}, {}, {}, {}
    if is_ready then
      read_ready(lane, math.min(most, SCAN - scanned))
      scanned = scanned + #ids
    else
      admit(lane, most)
    end
    local input_keys = {}
    for i, id in ipairs(ids) do input_keys[i] = keys.input(id) end
    local inputs = #ids > 0 and redis.call('MGET', unpack(input_keys))
    for i, id in ipairs(ids) do
      local is_done, err = pcall(hand_out, streams_of[i], mids[i], id, inputs[i], admitted_records[i])
      if not is_done then fault, scanned = records.as_reply(err), scanned + 1 end
    end
    local is_exhausted = #ids == 0 and not is_ready and mask[lane] == 0
    if #reply > before or stopped or is_exhausted then break end
  until scanned >= SCAN
  return #reply > before
end

-- Predictions behind a limit or a pause are no work now: else their lane would gather credit and then go alone for long.
local function has_work(lane)
  if mask[lane] ~= 0 then return true end
  return backlogged[lane] ~= '0' and redis.call('EXISTS', keys.queue(queue, 'vtime:' .. lane)) == 1
end

local function has_others(lane)
  for _, other in ipairs(share.LANES) do
    if other ~= lane and has_work(other) then return true end
  end
  return false
end

-- 8 : 3 : 1, spread out and work-conserving. Of the lanes with work the one with the most credit goes first, and pays what
-- all of them are credited. A lane without work is set to 0: it neither saves nor owes. At the same credit a high lane goes
-- first.
local function pay(lane)
  local whole = 0
  for _, each in ipairs(share.LANES) do
    local takes_part = each == lane or has_work(each)
    credit[each] = takes_part and credit[each] + SHARES[each] or 0
    whole = whole + (takes_part and SHARES[each] or 0)
  end
  credit[lane] = credit[lane] - whole
end

local function has_idle() return mask.idle ~= 0 or backlogged.idle ~= '0' end

-- How much idle work may start in this call, beside what else it handed out. If none waits by its count, it is one: a look
-- corrects a lost count.
local idle_room
local function room_for_idle()
  if not has_idle() then return 1 - (#reply - 2) end
  idle_room = idle_room or spare.room(queue, state[29], state[30])
  return idle_room - (#reply - 2)
end

-- Hand out up to `most` of the lane whose turn it is, else of the next one, and of the idle one last. Returns whether it did
-- any. One at a time if other lanes have work too, if the next one must be judged by what this one costs (a budget) or
-- leaves free (a limit), and for a probe. A budget that is reached ends the call: a smaller one of another lane would
-- overtake for ever.
local function take_any(most)
  local tried = {}
  for _ = 1, #share.LANES do
    local best, with_work
    for _, lane in ipairs(share.LANES) do
      local is_better = not best or credit[lane] + SHARES[lane] > credit[best] + SHARES[best]
      if not tried[lane] and is_better then best = lane end
    end
    if take(best, (is_probe or budget or share.has_any(queue, 'limits') or has_others(best)) and 1 or most) then
      pay(best)
      return true
    elseif stopped then
      return false
    end
    tried[best] = true
  end
  local room = room_for_idle()
  if scanned >= SCAN or room < 1 then return false end
  return take('idle', (is_probe or budget or share.has_any(queue, 'limits')) and 1 or math.min(most, room))
end

while #reply - 2 < count do -- the first two are the state and why it ended
  if scanned >= SCAN or not take_any(count - (#reply - 2)) then
    reply[2] = stopped or (scanned >= SCAN and 'bound') or 'empty'
    break
  end
end

local may_idle_start = has_idle() and room_for_idle() > 0 -- it counts leases, so it is asked before new ones are written

-- ── 4. write ────────────────────────────────────────────────────────────────────────────────────────────────────────

if #leases > 0 then redis.call('ZADD', keys.queue(queue, 'lease'), unpack(leases)) end
if budget and #reply > 2 then pending.count('tally', 'batch_' .. (spent > budget and 'oversize' or reply[2]), 1) end
estimate.write_scores()
share.write_clocks(queue)

-- An idle poll writes nothing: with appendfsync always a write would cost a disk sync.
local has_changed = #reply > 2 or scanned > 0
for i, lane in ipairs(share.LANES) do has_changed = has_changed or mask[lane] ~= tonumber(state[6 + i] or 0) end
for _, lane in ipairs(has_changed and share.LANES or {}) do
  pending.set('mask:' .. lane, mask[lane])
  pending.set('next:' .. lane, next_stream[lane])
  pending.set('credit:' .. lane, credit[lane])
end
if mask.idle ~= tonumber(state[25] or 0) or next_stream.idle ~= tonumber(state[26] or 0) then
  pending.set('mask:idle', mask.idle)
  pending.set('next:idle', next_stream.idle)
end
share.flush(queue)
if #reply > 2 then redis.call('HSET', keys.queue(queue, 'last'), consumer, table.concat(remembered, ' ')) end
local turns = { keys.queue(queue, 'vtime:high'), keys.queue(queue, 'vtime:normal'), keys.queue(queue, 'vtime:low'),
  may_idle_start and keys.queue(queue, 'vtime:idle') or nil }
local left = mask.high + mask.normal + mask.low + (may_idle_start and mask.idle or 0) > 0 or redis.call('EXISTS', unpack(turns)) > 0
-- A wakeup reaches one consumer, so remaining work wakes another one. That also holds for an empty answer if the scan's
-- bound or the budget stopped the claim. A consumer without room does not wait for a wakeup again, so nothing spins.
local has_any = #reply > 2
local is_for_others = (has_any and not is_probe) or (not has_any and (scanned >= SCAN or stopped))
if left and is_for_others then ready.ring(queue) end
if fault and not has_any then return fault end
return reply
