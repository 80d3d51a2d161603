#!lua flags=allow-oom
-- reserve: take one request or some compute from an account's limit, or deny it and change nothing.
-- A bucket holds up to `most` tokens and fills by `rate`; a request takes one. Of compute, a UTC day has `most`
-- milliseconds: what predictions that ended on it have spent, and what others have reserved on it until they end. All days
-- together have `credit` milliseconds, counted from when there first was such a limit; both are asked in one call.
--
--   KEYS[1]  usage    hash  {a:<account>}:usage     per bucket its tokens and when that was; per limit its denied bursts
--   KEYS[2]  taken    zset  {a:<account>}:taken     request -> when it took a token, so that a repeated call takes once
--   KEYS[3]  compute  hash  {a:<account>}:compute   day, spent, reserved; per id that has not ended: what it reserved
--   KEYS[4]  credit   hash  {a:<account>}:credit    the same of all days together
--   ARGV[1]  limit     'create' or 'read', which are buckets, or 'compute'
--   ARGV[2]  id        of what is asked for; a call with the same one is the same call
--   ARGV[3]  most      tokens of the bucket, or ms of compute a day, '' for no limit
--   ARGV[4]  rate      of a bucket: nanotokens that come in a millisecond
--   ARGV[5]  asked_ms  of compute: ms
--   ARGV[6]  in_all    of compute: ms in all, '' for no limit
--   Returns  {allowed, remaining, reset_ms, retry_after_ms, limit}   allowed: 1 or 0; remaining: whole tokens, or ms of
--            compute; reset_ms: until all of it is there again; retry_after_ms: until this may be asked again, 0 where it
--            is allowed; limit: the one that this tells of: as asked, or 'credit', which comes back with no time
--
-- uses keys:     clock

local usage, taken, compute, credit = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit, id, most, asked_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local most_in_all, now = tonumber(ARGV[6]), keys.clock(ARGV[7])

local DAY_MS, TOKEN = 86400000, 1000000000
local KEPT_MS = 40 * DAY_MS -- what waits for longer is not counted if nothing else was reserved meanwhile
local BURST_MS = 1000 -- a denial within this time of the last one is of the same burst: some clients ask six times at once
local REMEMBERED_MS, REMEMBERED = 30000, 512 -- longer than a call is repeated; who is forgotten takes twice
local WAITED_MS = 60000 -- for a clock that went back to catch up; further back, a bucket would stay empty for as long

-- For a day at least: so long the bursts are counted. A bucket that is forgotten is full, so not before it is.
local function keep(least_ms)
  redis.call('PEXPIRE', usage, math.max(DAY_MS, math.ceil(least_ms) + 1000))
end

local function deny(by, remaining, reset_ms, retry_ms)
  local last = tonumber(redis.call('HGET', usage, by .. ':denied') or -BURST_MS)
  if now - last > BURST_MS or now < last then redis.call('HINCRBY', usage, by .. ':bursts', 1) end
  redis.call('HSET', usage, by .. ':denied', now)
  keep(reset_ms)
  return { 0, remaining, math.ceil(reset_ms), math.ceil(retry_ms), by }
end

-- Compute left of a limit, and whether this id has reserved its part; unbounded without a limit.
local function standing(of, spent, reserved, held)
  if not of then return math.huge, true end
  return of - tonumber(spent or 0) - tonumber(reserved or 0), held
end

if limit == 'compute' then
  local day = math.floor(now / DAY_MS)
  local kept = redis.call('HMGET', compute, 'day', 'spent', 'reserved', id)
  local in_all = redis.call('HMGET', credit, 'spent', 'reserved', id)
  local is_new = day > tonumber(kept[1] or -1) -- a clock that goes back to yesterday does not bring yesterday back
  local reset_ms = (math.max(day, tonumber(kept[1] or 0)) + 1) * DAY_MS - now
  if is_new then kept = {} end
  local left, has_of_day = standing(most, kept[2], kept[3], kept[4])
  local left_in_all, has_of_all = standing(most_in_all, in_all[1], in_all[2], in_all[3])
  -- credit first: waiting does not bring it back
  if not has_of_all and asked_ms > left_in_all then return deny('credit', math.max(0, left_in_all), 0, 0) end
  if not has_of_day and asked_ms > left then return deny('compute', math.max(0, left), reset_ms, reset_ms) end
  if not has_of_day then
    -- reservations of other days are over, but what they were of is remembered: what it spends counts when it ends
    if is_new then redis.call('HSET', compute, 'day', day, 'spent', 0) end
    redis.call('HSET', compute, 'reserved', tonumber(kept[3] or 0) + asked_ms, id, asked_ms)
    redis.call('PEXPIRE', compute, KEPT_MS)
    left = left - asked_ms
  end
  if not has_of_all then
    redis.call('HSET', credit, 'reserved', tonumber(in_all[2] or 0) + asked_ms, id, asked_ms)
    left_in_all = left_in_all - asked_ms
  end
  local by = left_in_all < left and 'credit' or 'compute'
  return { 1, math.max(0, math.min(left, left_in_all)), by == 'compute' and reset_ms or 0, 0, by }
end

local rate, cap = tonumber(ARGV[4]), most * TOKEN
local kept = redis.call('HMGET', usage, limit .. ':tokens', limit .. ':at')
local last = tonumber(kept[2] or now)
local is_ahead = last - now > WAITED_MS
if is_ahead then last = now end
local at = math.max(now, last)
local tokens = math.min(cap, tonumber(kept[1] or cap) + (at - last) * rate)
local member = limit .. ' ' .. id
local is_repeated = redis.call('ZSCORE', taken, member)
if is_ahead then redis.call('HSET', usage, limit .. ':at', now) end
if not is_repeated and tokens < TOKEN then
  return deny(limit, 0, (cap - tokens) / rate, math.max(1, (TOKEN - tokens) / rate))
end
if not is_repeated then
  tokens = tokens - TOKEN
  redis.call('HSET', usage, limit .. ':tokens', tokens, limit .. ':at', at)
  keep((cap - tokens) / rate + at - now)
  redis.call('ZADD', taken, now, member)
  redis.call('ZREMRANGEBYSCORE', taken, '-inf', now - REMEMBERED_MS)
  redis.call('ZREMRANGEBYRANK', taken, 0, -REMEMBERED - 1)
  redis.call('PEXPIRE', taken, REMEMBERED_MS)
end
return { 1, math.floor(tokens / TOKEN), math.ceil((cap - tokens) / rate), 0, limit }
