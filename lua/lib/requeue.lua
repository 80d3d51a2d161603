-- lib/requeue: put a prediction back in line: one whose claim is taken away, or one that moves.
-- Needs lib/keys, lib/log, lib/place, lib/share, lib/breaker, lib/settle.

local CAME_TTL_MS = 2592000000 -- a move is remembered as long as a call may be repeated, even by a mover that was frozen
local OLDER = 1000000000000 -- more than any queue ever counts: moved predictions stand before others, in their order

-- Put it in line, or beside it until it is due; '' for at once. Returns fields for the record.
local function file_when_due(id, r, due)
  if due == '' then return file(id, r) end
  redis.call('ZADD', queue_key(r.queue, 'delayed'), due, id)
  return { 'stream', '', 'mid', '', 'charged', '' }
end

-- Take a waiting prediction out of its queue. Returns when it is due, '' if at once, and since when it was live there.
local function take_out(id, r)
  local due = r.mid == '' and redis.call('ZSCORE', queue_key(r.queue, 'delayed'), id) or ''
  local since = redis.call('ZSCORE', queue_key(r.queue, 'live'), id) or r.created
  unplace(id, r)
  correct(r, 0)
  count(r.queue, 'queued', r.account, -1)
  for _, index in ipairs({ 'live', 'deadline', 'delayed' }) do redis.call('ZREM', queue_key(r.queue, index), id) end
  return due, since
end

-- Put a prediction into the queue of its record. Returns fields for the record.
local function put_in(id, r, due, since)
  redis.call('ZADD', queue_key(r.queue, 'live'), since, id)
  if soonest(r) then redis.call('ZADD', queue_key(r.queue, 'deadline'), soonest(r), id) end
  count(r.queue, 'queued', r.account, 1)
  return file_when_due(id, r, due)
end

-- Derive the k-th claim's jitter from the caller's one random number, by the golden ratio.
local function spread(jitter, k) return k == 1 and jitter or (jitter + k * 0.6180339887) % 1 end

-- Write the limits of an account that came with its prediction, unless the queue knows newer ones.
local function take_over_limits(queue, tenant, weight, most_running, revision)
  local text = bring_limits(queue, tenant, weight, most_running, revision)
  if not text then return end
  write_limits(queue, tenant, text)
  join_or_part(queue, tenant)
end

-- Take its claim away and put it back, or end it if it may not run again. Returns its new state in one word.
-- how: spent    true if it counts as an attempt
--      delay_ms before it may run again; for a lost claim the queue's policy decides
--      lost     its director went silent; jitter (0..1) spreads the retries
--      began    whether its run began; nil lets the record decide
--      error, code  of its end if it may not run again
local function requeue(id, r, how, now)
  if r.cancel == 'user' then
    settle(id, r, 'canceled', {}, now)
    return 'canceled'
  end
  if r.cancel ~= '' or past(r.deadline, now) then
    settle_late(id, r, now)
    return 'late'
  end
  if how.spent then
    note_failure(id, r, now)
  elseif redis.call('HGET', queue_key(r.queue, 'meta'), 'probe') == id then
    end_probe(r.queue, now)
  end
  local policy = redis.call('HMGET', queue_key(r.queue, 'meta'), 'attempts', 'on_lost', 'backoff_ms', 'backoff_cap_ms')
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
    bury(id, r, { error = why, code = code }, now)
    return 'dead'
  end
  local ran = r.metered ~= '' and ran_in_all(id, r, r.started, now)
  unplace(id, r)
  -- a run that died is charged: else an input that kills servers would use slots for free. If its director died too, the
  -- time is unknown, and the first charge stands
  if not (how.spent and r.started ~= '') then
    correct(r, 0)
  elseif not how.lost then
    correct(r, math.max(0, now - r.claimed) / 1000)
  end
  count(r.queue, 'running', r.account, -1)
  count(r.queue, 'queued', r.account, 1)
  redis.call('ZREM', queue_key(r.queue, 'lease'), id)
  local seq = r.seq + 1
  local kind = how.spent and 'retried' or 'released'
  append(id, { entry(kind, now, table.concat({ code, r.holder, r.claimed }, ' ')) })
  log(kind, id, r.queue, r.account, now, code .. ' ' .. r.holder)
  local placed = file_when_due(id, r, delay_ms > 0 and now + delay_ms or '')
  redis.call('HSET', record_key(id), 'status', 'starting', 'started', '', 'token', '',
    'attempt', how.spent and attempt or attempt - 1, 'seq', seq, unpack(placed))
  -- a failed run is not followed again; a run whose director died may still go on
  if r.remote ~= '' and how.spent and not how.lost then redis.call('HDEL', record_key(id), 'remote') end
  if ran then redis.call('HSET', record_key(id), 'ran_ms', ran) end
  note_running(r.queue, r.account)
  if r.begun == '' and r.start_by ~= '' then
    redis.call('ZADD', queue_key(r.queue, 'deadline'), soonest(r), id)
  end
  if how.spent then redis.call('HSET', record_key(id), 'history', history_with(r, code, now)) end
  redis.call('PUBLISH', channel(id), seq)
  return delay_ms > 0 and 'delayed' or 'waiting'
end
