#!lua
-- retain: count bytes that an account takes until it deletes them, or refuse them above a limit: texts of its models, and
-- its deployments. They are not in the account's slot, so the call comes before their write. A call whose reply was lost may
-- count twice. The next pass of a keeper says the whole sum, see recount.
--
--   KEYS[1]  data  hash  {a:<account>}:data     see lib/data
--   ARGV[1]  size         bytes; weigh takes them off again
--   ARGV[2]  for_ever_ms  the bucket of what never expires
--   ARGV[3]  most         bytes that the account may have then, '' for no limit
--   Returns  1, or {used, retry_ms} as enlist where nothing was written
--
-- uses keys:     clock
-- uses data:     count, counted, refusal_of

local hash, bytes, until_ms, most, now = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), keys.clock(ARGV[4])

if most then
  local total, buckets = data.counted(hash, now)
  if total + bytes > most then return data.refusal_of(total, buckets, bytes, until_ms, most, now) end
end
if bytes > 0 then data.count(hash, until_ms, bytes, now) end
return 1
