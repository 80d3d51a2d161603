#!lua flags=allow-oom
-- bound: set how a queue treats more work than it can run: accept all, a maximum, or only what starts at once.
--
--   KEYS[1]  meta        hash  {p}:q:<queue>:meta
--   ARGV[1]  mode        'absorb', 'bounded' or 'reject'
--   ARGV[2]  max_queued  most that may wait, for 'bounded'; '' else
--   Returns  1  done
--            0  the queue is not registered

local meta, mode, max_queued = KEYS[1], ARGV[1], ARGV[2]

if redis.call('EXISTS', meta) == 0 then return 0 end

redis.call('HSET', meta, 'mode', mode, 'max_queued', max_queued)
return 1
