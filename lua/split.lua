#!lua flags=allow-oom
-- split: write or remove how a deployment's calls are split, unless it changed since its writer read it. The log of the
-- partition has each change, also that of a keeper, which may not write the log of operators' changes.
-- Commands: 1 to refuse, 4 at most to write.
--
--   KEYS[1]  split       string  {p}:split:<owner>/<name>
--   KEYS[2]  split_runs  hash    {p}:split:<owner>/<name>:runs
--   ARGV[1]  was      what its writer read, '' where there was none
--   ARGV[2]  becomes  '' to remove it
--   ARGV[3]  fresh    '1' to count its runs from zero
--   ARGV[4]  queue    of the new version, for the log
--   ARGV[5]  account  the owner of the deployment, for the log
--   ARGV[6]  detail   what was changed and by whom, for the log
--   Returns  'written'  also if it is exactly that already
--            'changed'  another writer was faster: nothing was written
--
-- uses keys:     clock
-- uses log:      write

local was, becomes, fresh = ARGV[1], ARGV[2], ARGV[3]

local is = redis.call('GET', KEYS[1]) or ''
if is == becomes then return 'written' end
if is ~= was then return 'changed' end

local now = string.format('%d', keys.clock(ARGV[7]))
if becomes == '' then
  redis.call('DEL', KEYS[1], KEYS[2])
else
  if fresh == '1' then redis.call('DEL', KEYS[2]) end
  redis.call('SET', KEYS[1], becomes)
end
log.write('split', '', ARGV[4], ARGV[5], now, ARGV[6])
return 'written'
