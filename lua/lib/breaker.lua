-- lib/breaker: stop handing out work for a time when the servers of a queue fail one after the other.
--
-- meta: breaker       '' closed, 'open' until `open_until`, then 'probing' while the prediction `probe` runs as a test
--       failures      in a row, over all directors; `several`: they were of more than one prediction. One input that
--                     kills its servers becomes a dead letter and does not stop the others
--
-- uses keys:     queue
-- uses records:  past
-- uses ready:    ring

breaker.ONE_FAULT_MS = 1000 -- losses of one director within a second count as one fault: `failed_holders` since `failed_at`
breaker.LONGEST = 10 -- times the first cooling time

-- Facts about the queue that ends need, by place in the list below: read once for a call, and kept up to date.
breaker.facts = nil
function breaker.facts_of(queue)
  breaker.facts = breaker.facts or redis.call('HMGET', keys.queue(queue, 'meta'), 'failures', 'breaker', 'probe', 'data_ttl_ms', 'record_ttl_ms',
    'within:high', 'within:normal', 'within:low', 'service_n', 'service_ms', 'service_dev', 'service_cost',
    'service_row', 'service_out', 'mask:idle', 'backlogged:idle')
  return breaker.facts
end

-- True if an open breaker lets one claim try. An end that is later than possible counts as past: the clock went back.
function breaker.is_cool(open_until, cool_ms, now)
  return records.past(open_until, now) or open_until - now > tonumber(cool_ms or 0)
end

function breaker.open(queue, cool_ms, now)
  redis.call('HSET', keys.queue(queue, 'meta'), 'breaker', 'open', 'open_until', now + cool_ms, 'cool_ms', cool_ms, 'probe', '')
end

-- Count an attempt that a fault of the servers ended, not of the model.
function breaker.note_failure(id, r, now)
  local meta = keys.queue(r.queue, 'meta')
  local m = redis.call('HMGET', meta, 'breaker', 'failures', 'failed_holders', 'failed_at', 'failed_id', 'several',
    'breaker_after', 'breaker_cool_ms', 'probe', 'cool_ms')
  local breaker_state, failures, after, cool_ms = m[1] or '', tonumber(m[2] or 0), tonumber(m[7] or 0), tonumber(m[8] or 0)
  if after == 0 then return end
  breaker.facts = nil -- what changes here is read again
  if breaker_state == 'probing' and m[9] == id then
    breaker.open(r.queue, math.min(2 * m[10], breaker.LONGEST * cool_ms), now)
    return
  end
  if breaker_state ~= '' then return end
  local several = m[6] == '1' or (failures > 0 and m[5] ~= id)
  local is_same_second = failures > 0 and math.abs(now - m[4]) < breaker.ONE_FAULT_MS
  local holders, since = is_same_second and m[3] or '', is_same_second and m[4] or now
  if not string.find(holders .. ' ', ' ' .. r.holder .. ' ', 1, true) then
    failures, holders = failures + 1, holders .. ' ' .. r.holder
  end
  redis.call('HSET', meta, 'failures', failures, 'failed_holders', holders, 'failed_at', since,
    'failed_id', id, 'several', several and '1' or '')
  if failures >= after and several then breaker.open(r.queue, cool_ms, now) end
end

-- Close it: the servers finished a run, or the breaker was switched off.
function breaker.close(queue, now)
  local facts = breaker.facts_of(queue)
  local was_open = (facts[2] or '') ~= ''
  if (facts[1] or '0') == '0' and not was_open then return end
  local meta = keys.queue(queue, 'meta')
  facts[1], facts[2], facts[3] = '0', '', ''
  redis.call('HSET', meta, 'failures', 0, 'several', '', 'breaker', '', 'probe', '')
  if not was_open then return end
  redis.call('HSET', meta, 'moved_at', now)
  ready.ring(queue)
end

-- The probe ended without a result: another prediction may try at once.
function breaker.end_probe(queue, now)
  if breaker.facts then breaker.facts[2], breaker.facts[3] = 'open', '' end
  redis.call('HSET', keys.queue(queue, 'meta'), 'breaker', 'open', 'open_until', now, 'probe', '')
  ready.ring(queue)
end
