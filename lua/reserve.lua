#!lua flags=allow-oom
-- reserve: may this account have one thing more? Takes it from the limit that is asked about, or leaves that as it was.
-- A bucket holds up to `most` tokens and fills by `rate`; a request takes one. Of compute, a UTC day has `most`
-- milliseconds: what predictions of that day have spent, and what others of it have reserved until they end.
--
--   KEYS[1]  usage    hash  {a:<account>}:usage     per bucket its tokens and when that was; per limit its denied bursts
--   KEYS[2]  taken    zset  {a:<account>}:taken     who took a token lately -> when: a call that is repeated takes once
--   KEYS[3]  compute  hash  {a:<account>}:compute   day, spent, reserved; per id that has not ended: what it reserved
--   ARGV[1]  limit    'create' or 'read', which are buckets, or 'compute'
--   ARGV[2]  id       of what is asked for; a call with the same one is the same call
--   ARGV[3]  most     tokens of the bucket, or ms of compute a day
--   ARGV[4]  rate     of a bucket: nanotokens that come in a millisecond
--   ARGV[5]  asked    of compute: ms
--   ARGV[6]  now_ms   '' for the server's clock
--   Returns  {allowed, remaining, reset_ms, retry_after_ms}   allowed: 1 or 0; remaining: whole tokens, or ms of compute;
--            reset_ms: until all of it is there again; retry_after_ms: until this may be asked again, 0 where it is allowed

local usage, taken, compute = KEYS[1], KEYS[2], KEYS[3]
local limit, id, most, asked, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local DAY_MS, TOKEN = 86400000, 1000000000
local BURST_MS = 1000 -- a denial within this time of the last one is of the same burst: some clients ask six times at once
local REMEMBERED_MS, REMEMBERED = 30000, 512 -- longer than a call is repeated; who is forgotten takes twice

-- For a day at least: so long the bursts are counted. A bucket that is forgotten is full, so not before it is.
local function keep(least_ms)
  redis.call('PEXPIRE', usage, math.max(DAY_MS, math.ceil(least_ms) + 1000))
end

local function deny(remaining, reset_ms, retry_ms)
  local last = tonumber(redis.call('HGET', usage, limit .. ':denied') or -BURST_MS)
  if now - last > BURST_MS or now < last then redis.call('HINCRBY', usage, limit .. ':bursts', 1) end
  redis.call('HSET', usage, limit .. ':denied', now)
  keep(reset_ms)
  return { 0, remaining, math.ceil(reset_ms), math.max(1, math.ceil(retry_ms)) }
end

if limit == 'compute' then
  local day = math.floor(now / DAY_MS)
  local kept = redis.call('HMGET', compute, 'day', 'spent', 'reserved', id)
  local is_new = day > tonumber(kept[1] or -1) -- a clock that goes back to yesterday does not bring yesterday back
  local spent, reserved = tonumber(kept[2] or 0), tonumber(kept[3] or 0)
  if is_new then spent, reserved = 0, 0 end
  local reset_ms = (math.max(day, tonumber(kept[1] or 0)) + 1) * DAY_MS - now
  local left = most - spent - reserved
  if kept[4] and not is_new then return { 1, math.max(0, left), reset_ms, 0 } end
  if asked > left then return deny(math.max(0, left), reset_ms, reset_ms) end
  if is_new then
    redis.call('UNLINK', compute)
    redis.call('HSET', compute, 'day', day, 'spent', 0)
  end
  redis.call('HSET', compute, 'reserved', reserved + asked, id, asked)
  redis.call('PEXPIRE', compute, 2 * DAY_MS)
  return { 1, left - asked, reset_ms, 0 }
end

local rate, cap = tonumber(ARGV[4]), most * TOKEN
local kept = redis.call('HMGET', usage, limit .. ':tokens', limit .. ':at')
local at = math.max(now, tonumber(kept[2] or now))
local tokens = math.min(cap, tonumber(kept[1] or cap) + (at - tonumber(kept[2] or at)) * rate)
local member = limit .. ' ' .. id
local is_repeated = redis.call('ZSCORE', taken, member)
if not is_repeated and tokens < TOKEN then return deny(0, (cap - tokens) / rate, (TOKEN - tokens) / rate) end
if not is_repeated then
  tokens = tokens - TOKEN
  redis.call('HSET', usage, limit .. ':tokens', tokens, limit .. ':at', at)
  keep((cap - tokens) / rate + at - now)
  redis.call('ZADD', taken, now, member)
  redis.call('ZREMRANGEBYSCORE', taken, '-inf', now - REMEMBERED_MS)
  redis.call('ZREMRANGEBYRANK', taken, 0, -REMEMBERED - 1)
  redis.call('PEXPIRE', taken, REMEMBERED_MS)
end
return { 1, math.floor(tokens / TOKEN), math.ceil((cap - tokens) / rate), 0 }
