#!lua flags=allow-oom
-- hours: set the open hours of one account in a queue, or of the whole queue. Each create of an account that has some brings
-- them first; a keeper brings times of later days.
--
--   KEYS[1]  meta      hash  {p}:q:<queue>:meta
--   ARGV[1]  account   '' for the whole queue
--   ARGV[2]  revision  which change of them this is: an older one changes nothing
--   ARGV[3]  hours     as an operator wrote them, with the zone last; '' for always
--   ARGV[4]  times     '<from>-<to> …' in ms: when they are closed, in order
--   Returns  1  done, or known to be older than what was done
--            0  the queue is not registered
--
-- uses keys:     QUEUE, clock, queue
-- uses share:    has_any, write_hours

local meta, queue, account, revision, hours, times = KEYS[1], keys.QUEUE, ARGV[1], ARGV[2], ARGV[3], ARGV[4]
keys.clock(ARGV[5])

if redis.call('EXISTS', meta) == 0 then return 0 end
local known = share.has_any(queue, 'hours') and redis.call('HGET', keys.queue(queue, 'hours'), account)
local text = revision .. ' ' .. hours .. '|' .. times
if known == text or (not known and hours == '') then return 1 end
if known and tonumber(string.match(known, '^%d+')) > tonumber(revision) then return 1 end

share.write_hours(queue, account, text)
return 1
