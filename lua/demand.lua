#!lua flags=no-writes
-- demand: count what a queue could run now or soon and what it runs, and return what it learned from its runs.
--
--   KEYS[1]  meta     hash  {p}:q:<queue>:meta
--   ARGV[1]  soon_ms  what is due later, or opens later, is left out
--   Returns  {now, runnable, running, high, normal, low, slots_each, service_ms, paused, objectives}
--            runnable: without those of a paused queue or account, a suspended account, out of hours, or beyond a limit, and without idle work.
--                      Never too few: accounts beyond the first LOOK count as runnable
--            high, normal, low: all that waits in each lane; service_ms, slots_each: 0 if unknown
--            {}  the queue is not registered
--
-- uses keys:     QUEUE, clock, queue, record
-- uses pending:  counted
-- uses share:    backlog, closed_until, is_held, limits_of
-- uses outlook:  look_at, waits_in

local meta, queue, soon_ms, now = KEYS[1], keys.QUEUE, tonumber(ARGV[1]), keys.clock(ARGV[2])
local LOOK_AT = 500

local m = outlook.look_at(queue, 'normal')
if m.streams == '' then return {} end

local function is_closed(account) return (share.closed_until(queue, account) or 0) > now + soon_ms end

-- The number of predictions whose accounts may run nothing or no more, and those accounts.
local function withheld()
  local sum, whose = 0, {}
  for what, draw in pairs({ held = 'SRANDMEMBER', suspended = 'HRANDFIELD', limits = 'HRANDFIELD', hours = 'HRANDFIELD' }) do
    for _, account in ipairs(redis.call(draw, keys.queue(queue, what), LOOK_AT)) do
      local _, most = share.limits_of(queue, account)
      local may = (share.is_held(queue, account) or is_closed(account)) and 0 or math.max(0, (most or math.huge) - pending.counted(queue, 'running', account))
      local idle = redis.call('ZCARD', share.backlog(queue, 'idle', account))
      local stays = pending.counted(queue, 'queued', account) - idle - may
      if stays > 0 and not whose[account] then sum, whose[account] = sum + stays, true end
    end
  end
  return sum, whose
end

-- Retries that are due later, without accounts that were left out already.
local function due_later(whose)
  local later = '(' .. now + soon_ms
  local all = redis.call('ZCOUNT', keys.queue(queue, 'delayed'), later, '+inf')
  if all == 0 or not next(whose) then return all end
  local others = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys.queue(queue, 'delayed'), later, '+inf', 'LIMIT', 0, LOOK_AT)) do
    local account = redis.call('HGET', keys.record(id), 'account')
    if account and not whose[account] then others = others + 1 end
  end
  return others
end

local runnable = 0
if m.paused ~= '1' and not is_closed('') then
  local kept_back, whose = withheld()
  runnable = math.max(0, redis.call('ZCARD', keys.queue(queue, 'live')) - m.claimed - kept_back - due_later(whose) - outlook.waits_in(m, 'idle'))
end
local shown = redis.call('HMGET', meta, 'slots_each', 'objectives')
return {
  now, runnable, m.claimed, outlook.waits_in(m, 'high'), outlook.waits_in(m, 'normal'), outlook.waits_in(m, 'low'),
  shown[1] or '0', m.service_ms, m.paused == '1' and '1' or '0', shown[2] or '',
}
