#!lua flags=allow-oom
-- pause: stop handing out work of a queue or of one account, or resume. Claimed predictions run on; waiting ones keep their
-- place. An operator's pause here and a suspension of the account are independent.
--
--   KEYS[1]  meta    hash  {p}:q:<queue>:meta
--   ARGV[1]  paused  '1', or '0' to resume
--   ARGV[2]  account  '' for the whole queue
--   ARGV[3]  revision  which change of its account's suspension this is, '' for none: an older one changes nothing
--   ARGV[4]  by      who does it, for those who wait; '' if that is unknown
--   Returns  1  done, or known to be older than what was done
--            0  the queue is not registered
--
-- uses keys:     QUEUE, clock, queue
-- uses ready:    ring
-- uses share:    update_turns

local meta, queue, paused, account, revision, by = KEYS[1], keys.QUEUE, ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = keys.clock(ARGV[5])

if redis.call('EXISTS', meta) == 0 then return 0 end

-- Returns true if the account was suspended and no longer is.
local function suspend()
  local key = keys.queue(queue, 'suspended')
  local since = redis.call('HGET', key, account)
  if since and tonumber(since) > tonumber(revision) then return false end
  if paused == '0' then
    redis.call('HDEL', key, account)
  elseif since ~= revision then
    redis.call('HSET', key, account, revision)
  end
  return paused == '0' and since
end

local has_resumed
if account == '' then
  local was = redis.call('HGET', meta, 'paused') or '0'
  has_resumed = paused == '0' and was == '1'
  local noted = paused == '1' and { now, by } or { '', '' }
  if was ~= paused then redis.call('HSET', meta, 'paused', paused, 'paused_at', noted[1], 'paused_by', noted[2]) end
  if paused == '0' then ready.ring(queue) end
elseif revision ~= '' then
  has_resumed = suspend()
  share.update_turns(queue, account)
else
  has_resumed = redis.call(paused == '1' and 'SADD' or 'SREM', keys.queue(queue, 'held'), account) == 1 and paused == '0'
  share.update_turns(queue, account)
end
if has_resumed then redis.call('HSET', meta, 'moved_at', now) end
return 1
