#!lua flags=allow-oom
-- budget: reserve tokens, and compute of a month, of an account's limits, or deny it and change nothing. All limits are asked
-- in one call. A minute is a bucket that fills by `per_minute`, and may be overdrawn by runs that used more than expected. A
-- day and a month in UTC have what was spent and what runs that have not ended have reserved.
--
--   KEYS[1]  budget      hash  {a:<account>}:budget   see below
--   ARGV[1]  prediction_id  a call with the same one is the same call
--   ARGV[2]  tokens      that it will probably use
--   ARGV[3]  compute_ms  that it will probably use
--   ARGV[4]  per_minute  tokens; '' for no limit, as below
--   ARGV[5]  per_day     tokens
--   ARGV[6]  per_month   tokens
--   ARGV[7]  month_ms    of compute
--   Returns  {allowed, limit, retry_after_ms}   allowed: 1 or 0; limit: the one that denies for longest, or ''
--
--   minute               '<left> <at_ms> <most>'
--   day, month, compute  '<period> <spent> <reserved>'   period: the number of the day, or 202611
--   <id>                 '<tokens> <ms> <day> <month>'   what it reserved, and in which periods, until settle
--
-- uses keys:     clock
-- uses ledger:   DAY_MS, date
-- uses bucket:   KEPT_MS, minute_left

local key, id, tokens, ms, now = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), keys.clock(ARGV[8])
local per_minute = tonumber(ARGV[4])

local kept = redis.call('HMGET', key, id, 'minute', 'day', 'month', 'compute')
if kept[1] then return { 1, '', 0 } end

local day_number = math.floor(now / ledger.DAY_MS)
local month = ledger.date(now)
-- Time until the period ends. Only a denial needs it.
local function to_day_end() return (day_number + 1) * ledger.DAY_MS - now end
local function to_month_end()
  local next_day = day_number + 1
  while ledger.date(next_day * ledger.DAY_MS) == month do next_day = next_day + 1 end -- at most 31 times
  return next_day * ledger.DAY_MS - now
end

-- The fields to write, and the denial that lasts longest.
local fields, denied, longest_ms = { id, string.format('%.0f %.0f %d %s', tokens, ms, day_number, month) }, '', 0

local function add(field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end

local function deny(limit, wait_ms)
  if wait_ms > longest_ms then denied, longest_ms = limit, wait_ms end
end

-- Take from a day or a month. What asks for more than all of it goes if nothing else was spent. to_end: a function, the wait
-- after a denial.
local function take(field, text, period, most, asked, to_end)
  if not most then return end
  local known, spent, reserved = string.match(text or '', '^(%S+) (%S+) (%S+)$')
  if known ~= tostring(period) then spent, reserved = 0, 0 end
  if spent + reserved + math.min(asked, most) > most then deny(field, to_end()) end
  add(field, string.format('%s %.0f %.0f', period, spent, reserved + asked))
end

if per_minute then
  local left = bucket.minute_left(kept[2], per_minute, now)
  local asked = math.min(tokens, per_minute)
  if left < asked then deny('minute', math.ceil((asked - left) * 60000 / per_minute)) end
  add('minute', string.format('%.3f %.0f %.0f', left - tokens, now, per_minute))
end
take('day', kept[3], day_number, tonumber(ARGV[5]), tokens, to_day_end)
take('month', kept[4], month, tonumber(ARGV[6]), tokens, to_month_end)
take('compute', kept[5], month, tonumber(ARGV[7]), ms, to_month_end)
if denied ~= '' then return { 0, denied, longest_ms } end
redis.call('HSET', key, unpack(fields))
redis.call('PEXPIRE', key, bucket.KEPT_MS)
return { 1, '', 0 }
