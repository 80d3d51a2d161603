#!lua flags=allow-oom
-- order: write what an operator wants of a model that shares devices with others. Its director reads it with `survey`.
--
--   KEYS[1]  meta   hash  {p}:q:<queue>:meta
--   ARGV[1]  order  'load' (once), 'rest' or 'pin' (until another order); '' for none
--   ARGV[2]  was    only where this was the order before; '' for any
--   Returns  1  done
--            0  the queue is not registered

local meta, order, was = KEYS[1], ARGV[1], ARGV[2]

if redis.call('EXISTS', meta) == 0 then return 0 end

if was == '' or redis.call('HGET', meta, 'order') == was then redis.call('HSET', meta, 'order', order) end
return 1
