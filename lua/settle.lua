#!lua flags=allow-oom
-- settle: replace what a prediction reserved by what its runs used, or by nothing. What they used counts in the day and the
-- month of this call: a reservation of an earlier one is over. Safe to repeat: only what budget remembers is corrected.
--
--   KEYS[1]  budget  hash  {a:<account>}:budget   see budget
--   ARGV[1]  prediction_id
--   ARGV[2]  tokens    that it used
--   ARGV[3]  spent_ms  of compute
--   Returns  1 if something was corrected, else 0
--
-- uses keys:     clock
-- uses ledger:   DAY_MS, date
-- uses bucket:   minute_left

local key, id, tokens, ms, now = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), keys.clock(ARGV[4])

local kept = redis.call('HMGET', key, id, 'minute', 'day', 'month', 'compute')
local had_tokens, had_ms, day, month = string.match(kept[1] or '', '^(%S+) (%S+) (%S+) (%S+)$')
if not had_tokens then return 0 end

local fields = {}
-- A clock that goes back to yesterday does not bring yesterday back.
local function correct(field, text, period, present, had, used)
  local known, spent, reserved = string.match(text or '', '^(%S+) (%S+) (%S+)$')
  if not known then return end
  if tonumber(known) < tonumber(present) then known, spent, reserved = present, 0, 0 end
  if known == period then reserved = math.max(0, reserved - had) end
  fields[#fields + 1] = field
  fields[#fields + 1] = string.format('%s %.0f %.0f', known, spent + used, reserved)
end

local most = tonumber(string.match(kept[2] or '', '(%S+)$'))
if most then
  local left = math.min(most, bucket.minute_left(kept[2], most, now) + had_tokens - tokens)
  fields = { 'minute', string.format('%.3f %.0f %.0f', left, now, most) }
end
local this_day, this_month = string.format('%d', math.floor(now / ledger.DAY_MS)), (ledger.date(now))
correct('day', kept[3], day, this_day, had_tokens, tokens)
correct('month', kept[4], month, this_month, had_tokens, tokens)
correct('compute', kept[5], month, this_month, had_ms, ms)
if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
redis.call('HDEL', key, id)
return 1
