#!lua
-- enlist: put predictions on their account's list, before they are enqueued: a list may name a refused prediction, but
-- never miss an accepted one. Each call drops a few ids without a record, so that no list grows for ever.
--
--   KEYS[1]  listing  zset  {a:<account>}:listing   all scores 0: ids sort by time
--   ARGV[1]  oldest   ids below this one have no record any more
--   ARGV[2…] score, id  of each new one, at most 32 of them
--   Returns  1

local listing, oldest = KEYS[1], ARGV[1]

for i = 2, #ARGV, 2 do redis.call('ZADD', listing, ARGV[i], ARGV[i + 1]) end
local most = 4 * (#ARGV - 1)
for _, gone in ipairs(redis.call('ZRANGEBYLEX', listing, '-', '(' .. oldest, 'LIMIT', 0, most)) do
  redis.call('ZREM', listing, gone)
end
return 1
