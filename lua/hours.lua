#!lua flags=allow-oom
-- hours: set the open hours of one account in a queue, or of the whole queue, or take them back. Each create of an account that
-- has some brings them first; a keeper brings times of later days. Hours that were taken back leave nothing that a claim or a
-- create reads.
--
--   KEYS[1]  meta      hash  {p}:q:<queue>:meta
--   ARGV[1]  account   '' for the whole queue
--   ARGV[2]  revision  which change of them this is: an older one changes nothing. '' for a new one: the last call counts
--   ARGV[3]  hours     as an operator wrote them, with the zone last; '' for always
--   ARGV[4]  times     '<from>-<to> …' in ms: when they are closed, in order
--   ARGV[5]  day       from which the times are, as its number since 1970 by UTC
--   Returns  1    done, or known to be older than what was done
--            0    the queue is not registered
--            day  the times are of another day than today, which is this one: nothing was written
--
-- uses keys:     QUEUE, clock, queue
-- uses share:    has_any, write_hours

local meta, queue, account, revision, hours, times, day = KEYS[1], keys.QUEUE, ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local now = keys.clock(ARGV[6])
local DAY_MS = 86400000
local REMEMBERED_MS = 600000 -- longer than any process has a former revision in its cache

if redis.call('EXISTS', meta) == 0 then return 0 end
local today = math.floor(now / DAY_MS)
if hours ~= '' and day ~= today then return today end

local taken_back = keys.queue(queue, 'reopened:' .. account) -- the revision of hours that were taken back
local known = share.has_any(queue, 'hours') and redis.call('HGET', keys.queue(queue, 'hours'), account)
local last = tonumber(string.match(known or redis.call('GET', taken_back) or '0', '^%d+'))
local is_same = (known and string.match(known, ' (.*)$') or '|') == hours .. '|' .. times
if is_same and (not revision or last == revision) then return 1 end
if revision and last > revision then return 1 end

-- A clock that went back makes no new change an older one.
revision = string.format('%d', revision or math.max(now, last + 1))
if hours == '' then redis.call('SET', taken_back, revision, 'PX', REMEMBERED_MS) end
if hours ~= '' or known then share.write_hours(queue, account, hours ~= '' and revision .. ' ' .. hours .. '|' .. times) end
return 1
