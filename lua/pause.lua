#!lua flags=allow-oom
-- pause: hand nothing out of a queue, or nothing of one tenant; or resume. What is claimed runs on; what waits keeps
-- its place.
-- Uses lib/keys lib/place lib/share
--
--   KEYS[1]  meta    hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  paused  '1', or '0' to resume
--   ARGV[3]  tenant  '' for the whole queue
--   Returns  1  done
--            0  nobody registered this queue

local meta, queue, paused, tenant = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', meta) == 0 then return 0 end

if tenant == '' then
  redis.call('HSET', meta, 'paused', paused)
  if paused == '0' then ring(queue) end
else
  redis.call(paused == '1' and 'SADD' or 'SREM', queue_key(queue, 'held'), tenant)
  join_or_part(queue, tenant)
end
return 1
