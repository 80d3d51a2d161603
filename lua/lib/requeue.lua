-- lib/requeue: take a claim away and put the prediction back, or end it where it may not run again.
-- Needs lib/keys, lib/place, lib/settle. Returns what became of it, in one word.

-- how: spent (was it an attempt?), delay_ms, error and code (what it is ended with when no attempt is left)
local function requeue(id, r, how, now)
  if r.cancel == 'user' then
    settle(id, r, 'canceled', {}, now)
    return 'canceled'
  end
  if r.cancel ~= '' or past(r.deadline, now) then
    settle_late(id, r, now)
    return 'late'
  end
  local attempt = tonumber(r.attempt)
  if not how.spent then attempt = attempt - 1 end
  local attempts = tonumber(redis.call('HGET', queue_key(r.queue, 'meta'), 'attempts'))
  if how.spent and attempt >= attempts then
    bury(id, r, { error = how.error, code = how.code }, now)
    return 'dead'
  end
  unplace(r)
  redis.call('ZREM', queue_key(r.queue, 'lease'), id)
  local seq = r.seq + 1
  append(id, how.spent and 'retried' or 'released', now, how.code)
  local stream, mid = '', ''
  if how.delay_ms > 0 then
    redis.call('ZADD', queue_key(r.queue, 'delayed'), now + how.delay_ms, id)
  else
    stream, mid = place(id, r)
  end
  redis.call('HSET', record_key(id), 'status', 'starting', 'started', '', 'token', '', 'attempt', attempt,
    'stream', stream, 'mid', mid, 'seq', seq)
  redis.call('PUBLISH', channel(id), seq)
  return how.delay_ms > 0 and 'delayed' or 'waiting'
end
