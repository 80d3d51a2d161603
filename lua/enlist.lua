#!lua
-- enlist: put a prediction on its account's list, before it is enqueued: a list may name a refused prediction, but
-- never miss an accepted one. Each call drops a few ids without a record, so that no list grows for ever.
--
--   KEYS[1]  listing  zset  {a:<account>}:listing   all scores 0: ids sort by time
--   ARGV[1]  id
--   ARGV[2]  oldest   ids below this one have no record any more
--   Returns  1

local listing, id, oldest = KEYS[1], ARGV[1], ARGV[2]

redis.call('ZADD', listing, 0, id)
for _, gone in ipairs(redis.call('ZRANGEBYLEX', listing, '-', '(' .. oldest, 'LIMIT', 0, 8)) do
  redis.call('ZREM', listing, gone)
end
return 1
