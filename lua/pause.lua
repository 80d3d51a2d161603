#!lua flags=allow-oom
-- pause: hand nothing out of a queue, or resume it. What is claimed runs on; what waits keeps its place.
-- Uses lib/keys lib/place
--
--   KEYS[1]  meta    hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  paused  '1', or '0' to resume
--   Returns  1  done
--            0  nobody registered this queue

local meta, queue, paused = KEYS[1], ARGV[1], ARGV[2]

if redis.call('EXISTS', meta) == 0 then return 0 end

redis.call('HSET', meta, 'paused', paused)
if paused == '0' then ring(queue) end
return 1
