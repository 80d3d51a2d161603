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
-- uses share:    LANES, backlog, closed_until, is_held, limits_of
-- uses outlook:  look_at, waits_in

local meta, queue, soon_ms, now = KEYS[1], keys.QUEUE, tonumber(ARGV[1]), keys.clock(ARGV[2])
local LOOK_AT = 500

local m = outlook.look_at(queue, 'normal')
if m.streams == '' then return {} end

local function is_closed(account) return (share.closed_until(queue, account) or 0) > now + soon_ms end

local DUE_LATER = '(' .. now + soon_ms -- retries that back off, and what is planned

-- Count what is due later by account, or return nil for too many.
local function due_later_by_account(all)
  local sums = {}
  if all > LOOK_AT then return nil end
  for _, id in ipairs(all > 0 and redis.call('ZRANGEBYSCORE', keys.queue(queue, 'delayed'), DUE_LATER, '+inf') or {}) do
    local account = redis.call('HGET', keys.record(id), 'account')
    if account then sums[account] = (sums[account] or 0) + 1 end
  end
  return sums
end

-- Return how many of an account are in line: its entries in streams are left out where too many are due later.
local function in_line_of(account, later)
  if later then
    return pending.counted(queue, 'queued', account) - redis.call('ZCARD', share.backlog(queue, 'idle', account)) - (later[account] or 0)
  end
  local sum = 0
  for _, lane in ipairs(share.LANES) do sum = sum + redis.call('ZCARD', share.backlog(queue, lane, account)) end
  return sum
end

-- Return how many are in line of accounts that may run nothing or no more.
local function withheld(due_later)
  local sum, seen, later = 0, {}, nil
  for what, draw in pairs({ held = 'SRANDMEMBER', suspended = 'HRANDFIELD', limits = 'HRANDFIELD', hours = 'HRANDFIELD' }) do
    local accounts = redis.call(draw, keys.queue(queue, what), LOOK_AT)
    if #accounts > 0 then later = later or due_later_by_account(due_later) end
    for _, account in ipairs(accounts) do
      local _, most = share.limits_of(queue, account)
      local may = (share.is_held(queue, account) or is_closed(account)) and 0 or math.max(0, (most or math.huge) - pending.counted(queue, 'running', account))
      if not seen[account] then sum, seen[account] = sum + math.max(0, in_line_of(account, later) - may), true end
    end
  end
  return sum
end

local runnable = 0
if m.paused ~= '1' and not is_closed('') then
  local due_later = redis.call('ZCOUNT', keys.queue(queue, 'delayed'), DUE_LATER, '+inf')
  runnable = redis.call('ZCARD', keys.queue(queue, 'live')) - m.claimed - due_later - outlook.waits_in(m, 'idle') - withheld(due_later)
end
local shown = redis.call('HMGET', meta, 'slots_each', 'objectives')
return {
  now, math.max(0, runnable), m.claimed, outlook.waits_in(m, 'high'), outlook.waits_in(m, 'normal'), outlook.waits_in(m, 'low'),
  shown[1] or '0', m.service_ms, m.paused == '1' and '1' or '0', shown[2] or '',
}
