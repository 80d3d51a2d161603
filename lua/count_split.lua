#!lua flags=allow-oom
-- count_split: add ended runs to the counts of a split, unless the split or the counts changed since they were read. So a run
-- counts once, however many keepers look.
-- Commands: 2 to refuse, 3 and one for each count to write.
--
--   KEYS[1]  split_runs  hash    {p0}:split:<owner>/<name>:runs
--   KEYS[2]  split       string  {p0}:split:<owner>/<name>
--   ARGV[1]  is      the split as its counter read it
--   ARGV[2]  was     the last entry of the log that was counted, '' for none
--   ARGV[3]  cursor  the last entry of the log that is counted with this call
--   ARGV[4…] name, count  of each way to end, and of each bucket of times
--   Returns  'counted'  also if it was counted by an earlier call
--            'changed'  nothing was written

local is, was, cursor = ARGV[1], ARGV[2], ARGV[3]

if redis.call('GET', KEYS[2]) ~= is then return 'changed' end
local counted = redis.call('HGET', KEYS[1], 'cursor') or ''
if counted == cursor then return 'counted' end
if counted ~= was then return 'changed' end

redis.call('HSET', KEYS[1], 'cursor', cursor)
for i = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 'counted'
