#!lua
-- enlist: put predictions on their account's list, before they are enqueued: a list may name a refused prediction, but
-- never miss an accepted one. Each drops a few ids without a record, so that no list grows for ever. Their bytes are counted
-- too, see lib/data, and refused above a limit: a call with a limit is answered before the prediction is enqueued.
-- A call that is repeated counts nothing again: the list tells. Of a batch that names a listed id nothing is counted.
-- Files have a list of the same form, which expires with the last of them.
-- Commands beside those of the list: one for each bucket of the batch.
--
--   of each item, in the form of lib/batch; all have one list:
--   KEYS[1]  listing  zset  {a:<account>}:listing, or {a:<account>}:files   all scores 0: ids sort by time
--   KEYS[2]  data     hash  {a:<account>}:data      see lib/data
--   ARGV[1]  name              the id
--   ARGV[2]  oldest            ids below this one have no record any more
--   ARGV[3]  counts_bytes      that it takes, 0 to count nothing
--   ARGV[4]  counts_until_ms   when they no longer count
--   ARGV[5]  lasting_bytes     bytes that it takes for longer, 0 for none
--   ARGV[6]  lasting_until_ms  when those no longer count
--   ARGV[7]  life_ms           how long the list lives from now on at least, '' for ever
--   ARGV[8]  most              bytes that the account may have then, '' for no limit
--   ARGV[9]  now_ms            '' for the server's clock
--   Returns  for each item
--            1                      it is on the list
--            {used, retry_ms}       it would be more than `most`: nothing was written. used: bytes before; retry_ms: until
--                                   so much of it expires that this one fits
--
-- uses keys:     clock
-- uses data:     count, counted, refusal_of
-- uses batch:    each

local listing, hash, oldest, life_ms, now, total, buckets
local listed, counted, count = {}, {}, 0

-- Return the refusal of these bytes, or nil.
local function refusal(id, bytes, until_ms, most)
  if redis.call('ZSCORE', listing, id) then return nil end
  if not total then total, buckets = data.counted(hash, now) end
  if total + bytes > most then return data.refusal_of(total, buckets, bytes, until_ms, most, now) end
  total = total + bytes
end

local function add_later(until_ms, bytes)
  if bytes > 0 then counted[until_ms] = (counted[until_ms] or 0) + bytes end
end

local function enlist(key, arg)
  listing, hash, oldest, life_ms = KEYS[key + 1], KEYS[key + 2], ARGV[arg + 2], ARGV[arg + 7]
  local id, bytes, until_ms, most = ARGV[arg + 1], tonumber(ARGV[arg + 3]), ARGV[arg + 4], tonumber(ARGV[arg + 8])
  local lasting = tonumber(ARGV[arg + 5])
  if most then
    now = keys.clock(ARGV[arg + 9])
    local refused = refusal(id, bytes + lasting, until_ms, most)
    if refused then return refused end
  end
  count = count + 1
  listed[2 * count - 1], listed[2 * count] = 0, id
  add_later(until_ms, bytes)
  add_later(ARGV[arg + 6], lasting)
  now = now or ARGV[arg + 9]
  return 1
end

return batch.each(2, enlist, function()
  if count == 0 then return end
  local are_new = redis.call('ZADD', listing, unpack(listed)) == count
  for until_ms, bytes in pairs(are_new and counted or {}) do
    data.count(hash, until_ms, bytes, now)
  end
  local gone = redis.call('ZRANGEBYLEX', listing, '-', '(' .. oldest, 'LIMIT', 0, 8 * count)
  if #gone > 0 then redis.call('ZREM', listing, unpack(gone)) end
  if life_ms ~= '' then
    for _, when in ipairs({ 'NX', 'GT' }) do redis.call('PEXPIRE', listing, life_ms, when) end
  end
end)
