-- lib/requeue: put a prediction back in line: one whose claim is taken away, or one that moves.
--
-- uses keys:     channel, queue, record
-- uses records:  append, entry, past, soonest
-- uses log:      write
-- uses pending:  correct_charge
-- uses estimate: charge
-- uses share:    bring_limits, count_now, file_now, note_running, take_away, update_turns, write_limits
-- uses breaker:  end_probe, note_failure
-- uses spare:    ring
-- uses ends:     bury, end_late, end_now, history_with, ran_in_all, ran_until, used_in_all
-- uses ledger:   add, look_up

requeue.CAME_TTL_MS = 2592000000 -- a move is remembered as long as a call may be repeated, even by a mover that was frozen
requeue.OLDER = 1000000000000 -- more than any queue ever counts: moved predictions stand before others, in their order

-- Put it in line, or beside it until it is due; '' for at once. Returns fields for the record.
function requeue.file_when_due(id, r, due)
  if due == '' then return share.file_now(id, r) end
  redis.call('ZADD', keys.queue(r.queue, 'delayed'), due, id)
  return { 'stream', '', 'mid', '', 'charged', '' }
end

-- Take a waiting prediction out of its queue. Returns when it is due, '' if at once, and since when it was live there.
function requeue.take_out(id, r)
  local due = r.mid == '' and redis.call('ZSCORE', keys.queue(r.queue, 'delayed'), id) or ''
  local since = redis.call('ZSCORE', keys.queue(r.queue, 'live'), id) or r.created
  share.take_away(id, r)
  pending.correct_charge(r, 0)
  share.count_now(r.queue, 'queued', r.account, -1)
  for _, index in ipairs({ 'live', 'deadline', 'delayed' }) do redis.call('ZREM', keys.queue(r.queue, index), id) end
  return due, since
end

-- Put a prediction into the queue of its record. Returns fields for the record.
function requeue.put_in(id, r, due, since)
  redis.call('ZADD', keys.queue(r.queue, 'live'), since, id)
  if records.soonest(r) then redis.call('ZADD', keys.queue(r.queue, 'deadline'), records.soonest(r), id) end
  share.count_now(r.queue, 'queued', r.account, 1)
  return requeue.file_when_due(id, r, due)
end

-- Derive the k-th claim's jitter from the caller's one random number, by the golden ratio.
function requeue.spread(jitter, k) return k == 1 and jitter or (jitter + k * 0.6180339887) % 1 end

-- Write the limits of an account that came with its prediction, unless the queue knows newer ones.
function requeue.take_over_limits(queue, account, weight, most_running, revision)
  local text = share.bring_limits(queue, account, weight, most_running, revision)
  if not text then return end
  share.write_limits(queue, account, text)
  share.update_turns(queue, account)
end

-- Decide what becomes of a claim that is taken away: 'canceled', 'late', 'dead', 'used_up', or 'waiting'. Writes nothing, and
-- fails on a bad record. `policy`: attempts and on_lost of the queue first.
function requeue.judge(r, how, policy, now)
  local attempt = r.attempt + 0
  if r.cancel == 'user' then return 'canceled' end
  if r.cancel ~= '' or records.past(r.deadline, now) then return 'late' end
  -- A silent director may have begun a run that the record does not show yet.
  local may_have_run = how.lost or how.began
  if may_have_run == nil then may_have_run = r.started ~= '' end
  -- Its caller reads the output as it comes, and may not be given that of another run after it
  local may_not_repeat = (may_have_run and policy[2] == 'fail') or r.shown ~= ''
  if may_not_repeat or (how.spent and attempt >= tonumber(policy[1])) then return 'dead' end
  if how.used_up and how.error ~= '' then return 'used_up' end
  return 'waiting'
end

-- Return the tokens that `advance` wrote of its run, under this claim's token, with a space before; '' if it wrote none.
function requeue.tokens_of(r)
  local token, tokens = string.match(r.used, '^(%S+) (.+)$')
  return token == r.token and ' ' .. tokens or ''
end

-- Return what the run used, '' if none began: as its director says, or else as far as it wrote it. A run that another
-- director may follow is left to that one: its end counts it, with all its tokens. So only its time counts here, and the second
-- value is the rest. One that ends now is followed by none.
function requeue.used_of(id, r, how, is_over, now)
  local used, ms = how.used, nil
  if used then
    ms = string.match(used, '^0 (%d+)') -- its director left it
    if not ms then return used end
  else
    if r.started == '' then return '' end
    ms = string.format('%.0f', math.max(0, ends.ran_until(id, r, now) - r.started))
  end
  -- 0.3.0 does not write whose name it is. A name of an earlier claim says nothing about the run of this one
  local may_follow = used or (r.remote ~= '' and (r.named_by == '' or r.named_by == r.token))
  if is_over or not may_follow then return '1 ' .. ms .. requeue.tokens_of(r) end
  return '0 ' .. ms, '1 0' .. requeue.tokens_of(r)
end

-- Do what requeue.judge decided. left: of requeue.used_of
function requeue.carry_out(id, r, how, became, policy, left, now)
  if became == 'canceled' then
    ends.end_now(id, r, 'canceled', {}, now)
    return 'canceled'
  elseif became == 'late' then
    ends.end_late(id, r, now)
    return 'late'
  end
  if how.spent then
    breaker.note_failure(id, r, now)
  elseif policy[6] == id then
    breaker.end_probe(r.queue, now)
  end
  local attempt, delay_ms, code, why = tonumber(r.attempt), how.delay_ms, how.code, how.error
  if how.lost then
    code, why = 'director_lost', 'The director that ran it went silent, and it may not run again.'
    -- the first retry is immediate: the lease was the wait
    delay_ms = attempt > 1 and math.floor(how.jitter * math.min(policy[4], policy[3] * 2 ^ (attempt - 1))) or 0
  end
  if became == 'dead' then
    ends.bury(id, r, { error = why, code = code }, now)
    return 'dead'
  elseif became == 'used_up' then -- the next claim would end it without these words
    ends.bury(id, r, { error = 'It was handed out too often without ever starting. ' .. why, code = 'too_many_claims' }, now)
    if not how.spent then redis.call('HSET', keys.record(id), 'attempt', attempt - 1) end
    return 'dead'
  end
  local ran = r.metered ~= '' and ends.ran_in_all(id, r, r.started, now)
  share.take_away(id, r)
  -- a run that died is charged: else an input that kills servers would use slots for free. If its director died too, the
  -- time is unknown, and the first charge stands
  if not (how.spent and r.started ~= '') then
    pending.correct_charge(r, 0)
  elseif how.lost then
    pending.correct_charge(r, tonumber(r.charged))
  else
    pending.correct_charge(r, estimate.charge(r, r.used_now, math.max(0, now - r.claimed) / 1000, policy[5]))
  end
  share.count_now(r.queue, 'running', r.account, -1)
  share.count_now(r.queue, 'queued', r.account, 1)
  redis.call('ZREM', keys.queue(r.queue, 'lease'), id)
  local seq = r.seq + 1
  local kind = how.spent and 'retried' or 'released'
  records.append(id, { records.entry(kind, now, table.concat({ code, r.holder, r.claimed }, ' ')) })
  log.write(kind, id, r.queue, r.account, now, code .. ' ' .. r.holder)
  local placed = requeue.file_when_due(id, r, delay_ms > 0 and now + delay_ms or '')
  local fields = { 'status', 'starting', 'started', '', 'token', '', 'attempt', how.spent and attempt or attempt - 1, 'seq', seq,
    unpack(placed) }
  local function add(field, value)
    if not value then return end
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  add('ran_ms', ran)
  add('used_before', r.budgeted ~= '' and ends.used_in_all(r))
  add('history', how.spent and ends.history_with(r, code, now))
  -- this claim followed the run that was left, and counted it
  add('left', left or (r.left ~= '' and r.named_by == r.token and ''))
  redis.call('HSET', keys.record(id), unpack(fields))
  -- a failed run is not followed again; a run whose director died may still go on
  if r.remote ~= '' and how.spent and not how.lost then
    redis.call('HDEL', keys.record(id), 'remote', 'named_by', 'left')
  end
  share.note_running(r.queue, r.account)
  spare.ring(r.queue)
  if r.begun == '' and r.start_by ~= '' then
    redis.call('ZADD', keys.queue(r.queue, 'deadline'), records.soonest(r), id)
  end
  redis.call('PUBLISH', keys.channel(id), seq)
  return delay_ms > 0 and 'delayed' or 'waiting'
end

-- Take its claim away and put it back, or end it if it may not run again. Returns its new state in one word.
-- how: spent    true if it counts as an attempt
--      delay_ms before it may run again; for a lost claim the queue's policy decides
--      lost     its director went silent; jitter (0..1) spreads the retries
--      began    whether its run began; nil lets the record decide
--      used_up  true if it was claimed as often as it may
--      used     what its run used; nil lets the record decide, as far as its director wrote it
--      error, code  of its end if it may not run again
-- Count what the run used. Its caller calls ledger.write.
function requeue.give_back(id, r, how, now)
  local policy = redis.call('HMGET', keys.queue(r.queue, 'meta'), 'attempts', 'on_lost', 'backoff_ms', 'backoff_cap_ms',
    'service_out', 'probe')
  local became = requeue.judge(r, how, policy, now)
  local used, left = requeue.used_of(id, r, how, became ~= 'waiting', now)
  local row = used ~= '' and ledger.look_up(r, now)
  r.used_now = used
  became = requeue.carry_out(id, r, how, became, policy, left, now)
  if row then ledger.add(row, used) end
  return became
end
