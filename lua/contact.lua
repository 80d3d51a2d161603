#!lua flags=allow-oom
-- contact: note a keeper's contact with this run of the server, and return for how long keepers had contact without a
-- break. All keepers share it, so that a new keeper need not wait for proof that another one has.
-- Uses lib/keys
--
--   KEYS[1]  contact    hash  contact
--   ARGV[1]  run_id     of the server; another one begins a new contact
--   ARGV[2]  silence_ms a longer one does, too, and a clock that went back as far
--   ARGV[3]  now_ms     '' for the server's clock
--   Returns  {now_ms, for how long, ms}

local contact, run_id, silence_ms, now = KEYS[1], ARGV[1], tonumber(ARGV[2]), clock(ARGV[3])

local known = redis.call('HMGET', contact, 'run_id', 'since', 'last')
local since = now
-- `since` may be later than now: the clock went back a little, or a keeper of the former release saw no break
if known[1] == run_id and math.abs(now - known[3]) <= silence_ms then since = math.min(now, tonumber(known[2])) end

redis.call('HSET', contact, 'run_id', run_id, 'since', since, 'last', now)
redis.call('PEXPIRE', contact, 4 * silence_ms + 1000)
return { now, now - since }
