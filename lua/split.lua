#!lua flags=allow-oom
-- split: write or remove how a deployment's calls are split, unless it changed since its writer read it. The list has each
-- deployment that tries a version. The log has each change, also that of a keeper, which may not write the log of
-- operators' changes. All keys lie in partition 0, whose log every receiver reads.
-- Commands: 1 to refuse, or 3 if the list is full. 7 at most to write.
--
--   KEYS[1]  splits      zset    {p0}:splits
--   KEYS[2]  split       string  {p0}:split:<owner>/<name>
--   KEYS[3]  split_runs  hash    {p0}:split:<owner>/<name>:runs
--   ARGV[1]  name     of the deployment, with its owner
--   ARGV[2]  was      what its writer read, '' where there was none
--   ARGV[3]  becomes  '' to remove it
--   ARGV[4]  step     'begins' a trial, 'shares' otherwise, 'stays' as it was or stopped, 'ends' the trial
--   ARGV[5]  most     deployments of one account that try a version
--   ARGV[6]  queue    of the new version, for the log
--   ARGV[7]  detail   what was changed and by whom, for the log
--   Returns  'written'  also if it is exactly that already
--            'changed'  another writer was faster: nothing was written
--            'full'     one more would be too many: nothing was written
--
-- uses keys:     clock
-- uses log:      write

local name, was, becomes, step = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local is = redis.call('GET', KEYS[2]) or ''
if is == becomes then return 'written' end
if is ~= was then return 'changed' end
local account = string.match(name, '^[^/]+')
if step == 'begins' and not redis.call('ZSCORE', KEYS[1], name) then
  local tried = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. account .. '/', '(' .. account .. '0', 'LIMIT', 0, ARGV[5])
  if #tried >= tonumber(ARGV[5]) then return 'full' end
end

local now = string.format('%d', keys.clock(ARGV[8]))
if step == 'ends' then
  redis.call('ZREM', KEYS[1], name)
else
  redis.call('ZADD', KEYS[1], 0, name)
end
if step == 'begins' or step == 'ends' then
  redis.call('DEL', KEYS[3])
elseif step == 'shares' then -- what is judged is of one share
  redis.call('HDEL', KEYS[3], 'old:succeeded:now', 'old:failed:now', 'new:succeeded:now', 'new:failed:now')
end
if becomes == '' then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], becomes)
end
log.write('split', '', ARGV[6], account, now, ARGV[7])
return 'written'
