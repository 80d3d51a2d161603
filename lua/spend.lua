#!lua flags=allow-oom
-- spend: give back what was reserved and not used: a create token, and compute beyond what was spent. What was spent counts in
-- the day of this call: a reservation of an earlier one is over. Safe to repeat: only what reserve remembers is given back.
--
--   KEYS[1]  usage    hash  {a:<account>}:usage     see reserve
--   KEYS[2]  taken    zset  {a:<account>}:taken
--   KEYS[3]  compute  hash  {a:<account>}:compute
--   KEYS[4]  credit   hash  {a:<account>}:credit
--   ARGV[1]  taken_by       the id that a token was taken by, '' to leave it
--   ARGV[2]  burst          most tokens of the bucket
--   ARGV[3]  rate           of the bucket: nanotokens that come in a millisecond
--   ARGV[4]  prediction_id  the id that compute was reserved by, '' to leave it
--   ARGV[5]  spent_ms       ms of compute
--   ARGV[6]  made_ms        when the id was made, '' without one: it was reserved then
--   Returns  {token, compute}   1 where something was given back or corrected, else 0
--
-- uses keys:     clock

local usage, taken = KEYS[1], KEYS[2]
local token, most, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local id, spent, made_ms, now = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), keys.clock(ARGV[7])

local DAY_MS, TOKEN = 86400000, 1000000000

local member = 'create ' .. token
local tokens = redis.call('HGET', usage, 'create:tokens')
local since = tokens and redis.call('ZSCORE', taken, member)
local held = {}
for _, key in ipairs({ KEYS[3], KEYS[4] }) do
  local reserved, all_reserved, all_spent, day = unpack(redis.call('HMGET', key, id, 'reserved', 'spent', 'day'))
  if reserved then
    held[key] = { 'reserved', all_reserved - reserved, 'spent', (all_spent or 0) + spent }
    local today = math.floor(now / DAY_MS)
    if day and tonumber(day) < today then
      held[key] = { 'day', today, 'reserved', 0, 'spent', spent }
    elseif day and math.floor(made_ms / DAY_MS) < tonumber(day) then
      held[key] = { 'spent', all_spent + spent }
    end
  end
end

if since then
  -- without this token the bucket might have been full, and new tokens lost since: those are not given back
  local back = math.max(0, TOKEN - math.max(0, now - since) * rate)
  redis.call('ZREM', taken, member)
  redis.call('HSET', usage, 'create:tokens', math.min(most * TOKEN, tokens + back))
end
for key, totals in pairs(held) do
  redis.call('HDEL', key, id)
  redis.call('HSET', key, unpack(totals))
end
return { since and 1 or 0, next(held) and 1 or 0 }
