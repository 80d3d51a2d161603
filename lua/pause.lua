#!lua flags=allow-oom
-- pause: stop handing out work of a queue or of one tenant, or resume. Claimed predictions run on; waiting ones keep their
-- place. An operator's pause here and a suspension of the account are independent.
-- Uses lib/keys lib/place lib/estimate lib/share
--
--   KEYS[1]  meta    hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  paused  '1', or '0' to resume
--   ARGV[3]  tenant  '' for the whole queue
--   ARGV[4]  now_ms  '' for the server's clock
--   ARGV[5]  revision  which change of its account's suspension this is, '' for none: an older one changes nothing
--   Returns  1  done, or known to be older than what was done
--            0  the queue is not registered

local meta, queue, paused, tenant, now, revision = KEYS[1], ARGV[1], ARGV[2], ARGV[3], clock(ARGV[4]), ARGV[5]

if redis.call('EXISTS', meta) == 0 then return 0 end

-- Returns true if the tenant was suspended and no longer is.
local function suspend()
  local key = queue_key(queue, 'suspended')
  local known = redis.call('HGET', key, tenant)
  if known and tonumber(known) > tonumber(revision) then return false end
  if paused == '0' then
    redis.call('HDEL', key, tenant)
  elseif known ~= revision then
    redis.call('HSET', key, tenant, revision)
  end
  return paused == '0' and known
end

local has_resumed
if tenant == '' then
  has_resumed = paused == '0' and redis.call('HGET', meta, 'paused') == '1'
  redis.call('HSET', meta, 'paused', paused)
  if paused == '0' then ring(queue) end
elseif revision ~= '' then
  has_resumed = suspend()
  join_or_part(queue, tenant)
else
  has_resumed = redis.call(paused == '1' and 'SADD' or 'SREM', queue_key(queue, 'held'), tenant) == 1 and paused == '0'
  join_or_part(queue, tenant)
end
if has_resumed then redis.call('HSET', meta, 'moved_at', now) end
return 1
