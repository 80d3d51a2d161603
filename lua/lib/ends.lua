-- lib/ends: make a prediction terminal, in the same way for every script.
--
-- uses keys:     channel, ends, events, input, output, owed, queue, record, unsettled, unspent
-- uses records:  DATA_TTL_MS, OWED_MS, RECORD_TTL_MS, append, entry, past, since, wants_end
-- uses log:      write
-- uses pending:  correct_charge, count, ended_of, gone, gone_from
-- uses share:    flush, take_away
-- uses breaker:  end_probe, facts_of
-- uses spare:    ring
-- uses ledger:   add, look_up, write

-- A silent director may have stopped at any time before its lease expired: its run counts until then. The lease is read once.
ends.leases = {}
function ends.ran_until(id, r, now)
  ends.leases[id] = ends.leases[id] or tonumber(redis.call('ZSCORE', keys.queue(r.queue, 'lease'), id)) or now
  return math.min(now, ends.leases[id])
end

-- ms of its runs so far, with the one that ends now.
function ends.ran_in_all(id, r, started, now)
  local before = tonumber(r.ran_ms) or 0
  if r.token == '' or started == '' then return before end
  return before + math.max(0, ends.ran_until(id, r, now) - started)
end

-- '<ms> <tokens>' of its runs so far, with the one that ends now: r.used_now, in the form of lib/ledger.
function ends.used_in_all(r)
  local ms, tokens = string.match(r.used_before, '^(%d+) (%d+)$')
  local now_ms, input, output = string.match(r.used_now .. ' 0 0 0 0', '^%d+ (%d+) (%d+) %d+ (%d+)')
  return string.format('%.0f %.0f', (ms or 0) + (now_ms or 0), (tokens or 0) + (input or 0) + (output or 0))
end

-- True if it ends later than its lane's objective and never started: no claim will count it as missed.
function ends.is_late_start(r, within_ms, now)
  return r.token == '' and r.claims == '0' and r.revivals == '' and (within_ms or '') ~= '' and now - records.since(r) > tonumber(within_ms)
end

-- Notify the API process that holds the caller's response, with the whole answer, so that it need not ask. A larger end
-- is notified by id alone: Redis cuts off a subscriber that cannot keep up.
ends.MOST_SENT_BYTES = 16384
function ends.tell_waiter(own, end_, output, logs)
  local code, error_text, metrics = end_.code or '', end_.error or '', end_.metrics or ''
  local message = own.id
  if #code + #error_text + #metrics + #output + #logs <= ends.MOST_SENT_BYTES then
    local head = { own.id, own.status, own.started == '' and '-' or own.started, own.at, #code, #error_text, #metrics, #output, #logs }
    message = table.concat(head, ' ') .. '\n' .. code .. error_text .. metrics .. output .. logs
  end
  redis.call('PUBLISH', keys.ends(own.r.waiter), message)
end

-- Fields of the record that an end sets, if not empty.
ends.SET = { 'error', 'code', 'metrics', 'ended' }

-- Overwrite the secret values of an input, which intake padded for it: their places stay, and twice is once. With SET, as
-- SETRANGE is a right that no process has in k8s/base/redis/users.acl.
function ends.overwrite_secrets(key, places)
  local input, at, parts = redis.call('GET', key), 1, {}
  if not input then return end
  for from, to in string.gmatch(places, '(%d+) (%d+)') do
    parts[#parts + 1] = string.sub(input, at, from)
    parts[#parts + 1] = '"[REDACTED]"' .. string.rep(' ', to - from - 12)
    at = to + 1
  end
  parts[#parts + 1] = string.sub(input, at)
  redis.call('SET', key, table.concat(parts), 'KEEPTTL')
end

-- A chunk of a call of OpenAI's API takes 271 bytes for 4 of text. Once the whole answer is the output, only readers that
-- are late need them still: at 3,200 tokens a second an hour of them would take 3.1 GB.
ends.CHUNKS_TTL_MS = 60000

-- Write the prediction's own keys, after what it shares with others. own: what ends.prepare returned.
function ends.write(own)
  local id, r, end_, record = own.id, own.r, own.end_, keys.record(own.id)
  local output, logs, code = end_.output or '', end_.logs or '', end_.code or ''
  redis.call('HSET', record, unpack(own.fields))
  -- its place and its claim, which only `revive` would need: 62 bytes of a record that is kept for a week. Hardly any has one
  -- of the second six, and to search for them takes as long as to delete the first
  redis.call('HDEL', record, 'token', 'mid', 'stream', 'shard', 'arrival', 'charged', 'waiter')
  if r.cancel .. r.used .. r.used_before .. r.named_by .. r.left .. r.shown ~= '' then
    redis.call('HDEL', record, 'cancel', 'used', 'used_before', 'named_by', 'left', 'shown')
  end
  redis.call('PEXPIRE', record, own.record_ttl)
  redis.call('PEXPIRE', keys.input(id), own.data_ttl)
  if r.secret ~= '' then ends.overwrite_secrets(keys.input(id), r.secret) end
  if own.wants_end then redis.call('ZADD', keys.owed(), own.now + (end_.grace_ms or 0), id) end
  if own.ran then redis.call('ZADD', keys.unspent(), own.ran, id .. ' ' .. r.account) end
  if r.budgeted ~= '' then redis.call('HSET', keys.unsettled(), id .. ' ' .. r.account, ends.used_in_all(r)) end
  if output ~= '' or logs ~= '' then
    local output_key = keys.output(id)
    redis.call('HSET', output_key, 'output', output, 'logs', logs)
    redis.call('PEXPIRE', output_key, own.data_ttl)
  end
  records.append(id, own.shown)
  local is_whole = r.endpoint ~= '' and output ~= ''
  redis.call('PEXPIRE', keys.events(id), is_whole and math.min(own.data_ttl, ends.CHUNKS_TTL_MS) or own.data_ttl)
  log.write('ended', id, r.queue, r.account, own.at, code ~= '' and own.status .. ' ' .. code or own.status)
  redis.call('PUBLISH', keys.channel(id), own.seq)
  if r.waiter ~= '' then ends.tell_waiter(own, end_, output, logs) end
end

ends.WITHIN = { high = 6, normal = 7, low = 8, idle = 0 } -- the places of objectives in breaker.facts_of; idle work has none

-- End a prediction, for a script that then calls share.flush, and ends.write with what this returns.
--
-- end_: error, code, output, logs, metrics, ran_ms, ended (token of the claim that finishes it), shown (events to write
-- before the last), grace_ms (time for the director to deliver the webhook itself), charge (of estimate.charge),
-- over_ms (how long ago the run was over).
function ends.prepare(id, r, status, end_, now)
  local facts, at, wants = breaker.facts_of(r.queue), string.format('%d', now), records.wants_end(r)
  local data_ttl = tonumber(r.data_ttl_ms) or tonumber(facts[4] or records.DATA_TTL_MS) -- the account's wins over the queue's
  local record_ttl = math.max(tonumber(facts[5] or records.RECORD_TTL_MS), data_ttl)
  if wants then -- the data outlives the owed webhook; `deliver` shortens the lifetime again
    data_ttl, record_ttl = math.max(data_ttl, records.OWED_MS), math.max(record_ttl, records.OWED_MS)
  end
  local started = r.started
  if started == '' and end_.ran_ms and end_.ran_ms ~= '' then started = now - end_.ran_ms end
  local ran = r.metered ~= '' and ends.ran_in_all(id, r, started, now - (end_.over_ms or 0))
  local seq, shown = r.seq + 1, end_.shown or {}
  shown[#shown + 1] = records.entry('completed', at, status)
  local fields = { 'status', status, 'completed', at, 'started', started, 'seq', seq }
  for _, field in ipairs(ends.SET) do
    if (end_[field] or '') ~= '' then
      fields[#fields + 1] = field
      fields[#fields + 1] = end_[field]
    end
  end
  local was_claimed = r.token ~= ''
  pending.correct_charge(r, end_.charge or 0)
  share.take_away(id, r)
  pending.count(was_claimed and 'running' or 'queued', r.account, -1)
  pending.ended_of[r.account] = true
  if facts[3] == id then breaker.end_probe(r.queue, now) end -- its end says nothing about the servers
  pending.count('tally', 'ended', 1)
  local within_ms = facts[ends.WITHIN[r.lane]]
  if ends.is_late_start(r, within_ms, now) then pending.count('tally', 'missed:' .. r.lane, 1) end
  pending.gone[#pending.gone + 1] = id
  pending.gone_from.live, pending.gone_from[was_claimed and 'lease' or 'delayed'] = true, true
  if r.deadline ~= '' or r.start_by ~= '' then pending.gone_from.deadline = true end
  return { id = id, r = r, status = status, end_ = end_, now = now, at = at, started = started, seq = seq, shown = shown,
    fields = fields, ran = ran, wants_end = wants, data_ttl = data_ttl, record_ttl = record_ttl }
end

-- A run that its director left for another one to follow (`left`) is counted here if it waits, since no director follows it.
function ends.end_now(id, r, status, end_, now)
  local row = r.token == '' and r.left ~= '' and ledger.look_up(r, now)
  if row then r.used_now = r.left end
  local own = ends.prepare(id, r, status, end_, now)
  share.flush(r.queue)
  ends.write(own)
  if r.token ~= '' then spare.ring(r.queue) end
  if row then
    ledger.add(row, r.left)
    ledger.write()
  end
end

-- End a prediction whose deadline has passed. `aborted` is only for callers that asked for a deadline: older official
-- clients break on that status.
function ends.end_late(id, r, now)
  if r.begun ~= '' then
    ends.end_now(id, r, 'canceled', { code = 'deadline_exceeded' }, now)
  elseif r.late == 'aborted' then
    ends.end_now(id, r, 'aborted', {}, now)
  else
    ends.end_now(id, r, 'failed',
      { error = 'The deadline passed before the prediction could start.', code = 'deadline_exceeded' }, now)
  end
end

-- End a waiting prediction whose time is up. Returns true if it was.
function ends.end_if_late(id, r, now)
  if records.past(r.deadline, now) then
    ends.end_late(id, r, now)
  elseif r.begun == '' and records.past(r.start_by, now) then
    ends.end_now(id, r, 'failed', { error = 'It could not start in the time that was asked for.', code = 'start_by_exceeded' }, now)
  else
    return false
  end
  return true
end

-- Attempts that did not end the prediction: attempt, director, claimed, given up, reason; separated by semicolons.
function ends.history_with(r, code, now)
  local line = table.concat({ r.attempt, r.holder, r.claimed, now, code }, ' ')
  return r.history == '' and line or r.history .. ';' .. line
end

-- A dead letter keeps its input as long as its record, and its place in line: an operator may revive it.
function ends.bury(id, r, end_, now)
  ends.end_now(id, r, 'failed', end_, now)
  redis.call('HSET', keys.record(id), 'history', ends.history_with(r, end_.code, now), 'shard', r.shard, 'arrival', r.arrival)
  local ttl = redis.call('HGET', keys.queue(r.queue, 'meta'), 'record_ttl_ms') or records.RECORD_TTL_MS
  redis.call('PEXPIRE', keys.input(id), ttl, 'GT')
  -- letters without a record cannot be revived, and the list must not grow for ever
  redis.call('ZREMRANGEBYSCORE', keys.queue(r.queue, 'dead'), '-inf', now - ttl)
  redis.call('ZADD', keys.queue(r.queue, 'dead'), now, id)
end
