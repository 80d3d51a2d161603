#!lua flags=allow-oom
-- contact: note a keeper's contact with this run of the server, and return for how long keepers had contact without a
-- break. All keepers share it, so that a new keeper need not wait for proof that another one has.
--
--   KEYS[1]  contact    hash  contact
--   ARGV[1]  run_id     of the server; another one begins a new contact
--   ARGV[2]  silence_ms a longer one does, too, and a clock that went back as far
--   Returns  {now_ms, for how long, ms}
--
-- uses keys:     clock

local contact, run_id, silence_ms, now = KEYS[1], ARGV[1], tonumber(ARGV[2]), keys.clock(ARGV[3])

local noted = redis.call('HMGET', contact, 'run_id', 'since', 'last')
local since = now
-- `since` may be later than now: the clock went back a little
if noted[1] == run_id and math.abs(now - noted[3]) <= silence_ms then since = math.min(now, tonumber(noted[2])) end

redis.call('HSET', contact, 'run_id', run_id, 'since', since, 'last', now)
redis.call('PEXPIRE', contact, 4 * silence_ms + 1000)
return { now, now - since }
