#!lua flags=allow-oom
-- note: write down what an operator is about to change, and the author, so that no change is made without a trace.
-- Keeps about the last 10,000.
--
--   KEYS[1]  changes  stream  changes
--   ARGV[1]  id       of the change; a call with the same id and kind is a repetition
--   ARGV[2]  kind
--   ARGV[3]  by       who changes it
--   ARGV[4]  account  that is changed, '' for none
--   ARGV[5]  queue    that is changed, '' for none
--   ARGV[6]  detail   what of it, as JSON; never read here
--   ARGV[7]  at_ms    when
--   Returns  1  noted
--            0  it was noted before: nothing was written
--
-- uses records:  parse

local changes, id, kind, at = KEYS[1], ARGV[1], ARGV[2], ARGV[7]
local MOST_KEPT, RECENT_CHANGES = 10000, 32 -- at most this many come between a call and its repetition

for _, change in ipairs(redis.call('XREVRANGE', changes, '+', '-', 'COUNT', RECENT_CHANGES)) do
  local former = records.parse(change[2])
  if former.id == id and former.kind == kind then return 0 end
end

redis.call('XADD', changes, 'MAXLEN', '~', MOST_KEPT, '*', 'id', id, 'kind', kind, 'queue', ARGV[5], 'account', ARGV[4],
  'at', at, 'by', ARGV[3], 'detail', ARGV[6])
return 1
