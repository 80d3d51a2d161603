#!lua
-- enlist: put predictions on their account's list, before they are enqueued: a list may name a refused prediction, but
-- never miss an accepted one. Each drops a few ids without a record, so that no list grows for ever.
--
--   of each item, in the form of lib/batch; all have one list:
--   KEYS[1]  listing  zset  {a:<account>}:listing   all scores 0: ids sort by time
--   ARGV[1]  id
--   ARGV[2]  oldest   ids below this one have no record any more
--   Returns  1 for each item

local listing, oldest
local listed = {}

local function enlist(key, arg)
  listing, oldest = KEYS[key + 1], ARGV[arg + 2]
  listed[#listed + 1], listed[#listed + 2] = 0, ARGV[arg + 1]
  return 1
end

return for_each_item(1, enlist, function()
  redis.call('ZADD', listing, unpack(listed))
  local gone = redis.call('ZRANGEBYLEX', listing, '-', '(' .. oldest, 'LIMIT', 0, 4 * #listed)
  if #gone > 0 then redis.call('ZREM', listing, unpack(gone)) end
end)
