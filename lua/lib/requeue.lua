-- lib/requeue: put a prediction back in line: one whose claim is taken away, or one that moves.
--
-- uses keys:     channel, queue, record
-- uses records:  append, entry, past, soonest
-- uses log:      write
-- uses pending:  correct_charge
-- uses estimate: charge_s
-- uses share:    bring_limits, count_now, file_now, note_running, take_away, update_turns, write_limits
-- uses breaker:  end_probe, note_failure
-- uses ends:     bury, end_late, end_now, history_with, ran_in_all, ran_until, used_in_all
-- uses ledger:   add

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

-- What is known of a run whose director went silent: its time, and the tokens that `advance` wrote under this claim's token.
-- A run that has a name on its server may be followed: then its end counts it, with all its tokens.
function requeue.seen_of(id, r, now)
  if r.started == '' then return '' end
  local ms = math.max(0, ends.ran_until(id, r, now) - r.started)
  if r.remote ~= '' then return string.format('0 %.0f', ms) end
  local token, tokens = string.match(r.used, '^(%S+) (.+)$')
  return string.format('1 %.0f', ms) .. (token == r.token and ' ' .. tokens or '')
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
  local used = how.used or requeue.seen_of(id, r, now)
  ledger.add(r, used, now)
  r.used_now = used
  if r.cancel == 'user' then
    ends.end_now(id, r, 'canceled', {}, now)
    return 'canceled'
  end
  if r.cancel ~= '' or records.past(r.deadline, now) then
    ends.end_late(id, r, now)
    return 'late'
  end
  if how.spent then
    breaker.note_failure(id, r, now)
  elseif redis.call('HGET', keys.queue(r.queue, 'meta'), 'probe') == id then
    breaker.end_probe(r.queue, now)
  end
  local policy = redis.call('HMGET', keys.queue(r.queue, 'meta'), 'attempts', 'on_lost', 'backoff_ms', 'backoff_cap_ms', 'service_out')
  local attempt, delay_ms, code, why = tonumber(r.attempt), how.delay_ms, how.code, how.error
  if how.lost then
    code, why = 'director_lost', 'The director that ran it went silent, and it may not run again.'
    -- the first retry is immediate: the lease was the wait
    delay_ms = attempt > 1 and math.floor(how.jitter * math.min(policy[4], policy[3] * 2 ^ (attempt - 1))) or 0
  end
  -- A silent director may have begun a run that the record does not show yet.
  local may_have_run = how.lost or how.began
  if may_have_run == nil then may_have_run = r.started ~= '' end
  if (how.spent and attempt >= tonumber(policy[1])) or (may_have_run and policy[2] == 'fail') then
    ends.bury(id, r, { error = why, code = code }, now)
    return 'dead'
  elseif how.used_up and why ~= '' then -- the next claim would end it without these words
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
  elseif not how.lost then
    pending.correct_charge(r, estimate.charge_s(r, used, math.max(0, now - r.claimed) / 1000, policy[5]))
  end
  share.count_now(r.queue, 'running', r.account, -1)
  share.count_now(r.queue, 'queued', r.account, 1)
  redis.call('ZREM', keys.queue(r.queue, 'lease'), id)
  local seq = r.seq + 1
  local kind = how.spent and 'retried' or 'released'
  records.append(id, { records.entry(kind, now, table.concat({ code, r.holder, r.claimed }, ' ')) })
  log.write(kind, id, r.queue, r.account, now, code .. ' ' .. r.holder)
  local placed = requeue.file_when_due(id, r, delay_ms > 0 and now + delay_ms or '')
  redis.call('HSET', keys.record(id), 'status', 'starting', 'started', '', 'token', '',
    'attempt', how.spent and attempt or attempt - 1, 'seq', seq, unpack(placed))
  -- a failed run is not followed again; a run whose director died may still go on
  if r.remote ~= '' and how.spent and not how.lost then redis.call('HDEL', keys.record(id), 'remote') end
  if ran then redis.call('HSET', keys.record(id), 'ran_ms', ran) end
  if r.budgeted ~= '' then redis.call('HSET', keys.record(id), 'used_before', ends.used_in_all(r)) end
  share.note_running(r.queue, r.account)
  if r.begun == '' and r.start_by ~= '' then
    redis.call('ZADD', keys.queue(r.queue, 'deadline'), records.soonest(r), id)
  end
  if how.spent then redis.call('HSET', keys.record(id), 'history', ends.history_with(r, code, now)) end
  redis.call('PUBLISH', keys.channel(id), seq)
  return delay_ms > 0 and 'delayed' or 'waiting'
end
