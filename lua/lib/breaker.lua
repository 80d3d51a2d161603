-- lib/breaker: hand out nothing for a while when the servers of a queue fail one after the other. Needs lib/keys,
-- lib/place.
--
-- meta: breaker       '' closed, 'open' until `open_until`, then 'probing' while `probe`, the one that may try, runs
--       failures      in a row, over all directors; `several` when they were not all of one prediction: an input that
--                     kills its holders is a dead letter, and no reason to stop the others

local ONE_FAULT_MS = 1000 -- what one holder loses within a second was lost to one fault: `failed_holders` since `failed_at`
local LONGEST = 10 -- times the first cool time

-- May one claim try, with an open breaker? Its time is over as well where it is later than it can be: the clock went back.
local function is_cool(open_until, cool_ms, now)
  return past(open_until, now) or open_until - now > tonumber(cool_ms or 0)
end

local function open_breaker(queue, cool_ms, now)
  redis.call('HSET', queue_key(queue, 'meta'), 'breaker', 'open', 'open_until', now + cool_ms, 'cool_ms', cool_ms, 'probe', '')
end

-- An attempt was lost to a fault of the servers, not of the model.
local function note_failure(id, r, now)
  local meta = queue_key(r.queue, 'meta')
  local m = redis.call('HMGET', meta, 'breaker', 'failures', 'failed_holders', 'failed_at', 'failed_id', 'several',
    'breaker_after', 'breaker_cool_ms', 'probe', 'cool_ms')
  local breaker, failures, after, cool_ms = m[1] or '', tonumber(m[2] or 0), tonumber(m[7] or 0), tonumber(m[8] or 0)
  if after == 0 then return end
  if breaker == 'probing' and m[9] == id then
    open_breaker(r.queue, math.min(2 * m[10], LONGEST * cool_ms), now)
    return
  end
  if breaker ~= '' then return end
  local several = m[6] == '1' or (failures > 0 and m[5] ~= id)
  local is_same_second = failures > 0 and math.abs(now - m[4]) < ONE_FAULT_MS
  local holders, since = is_same_second and m[3] or '', is_same_second and m[4] or now
  if not string.find(holders .. ' ', ' ' .. r.holder .. ' ', 1, true) then
    failures, holders = failures + 1, holders .. ' ' .. r.holder
  end
  redis.call('HSET', meta, 'failures', failures, 'failed_holders', holders, 'failed_at', since,
    'failed_id', id, 'several', several and '1' or '')
  if failures >= after and several then open_breaker(r.queue, cool_ms, now) end
end

-- They work: a run came to an end that its servers brought about. Or nobody asks any more.
local function close_breaker(queue, now)
  local meta = queue_key(queue, 'meta')
  local m = redis.call('HMGET', meta, 'failures', 'breaker')
  if (m[1] or '0') == '0' and (m[2] or '') == '' then return end
  redis.call('HSET', meta, 'failures', 0, 'several', '', 'breaker', '', 'probe', '')
  if (m[2] or '') == '' then return end
  redis.call('HSET', meta, 'moved_at', now)
  ring(queue)
end

-- The probe is over and told nothing: another one may try at once.
local function end_probe(queue, now)
  redis.call('HSET', queue_key(queue, 'meta'), 'breaker', 'open', 'open_until', now, 'probe', '')
  ring(queue)
end
