#!lua flags=allow-oom
-- limit: set one account's share of a queue: its weight, and its most running predictions.
-- Every enqueue brings both; this script is for predictions that already wait.
--
--   KEYS[1]  meta          hash  {p}:q:<queue>:meta
--   ARGV[1]  account
--   ARGV[2]  weight        1 by default
--   ARGV[3]  most_running  '' for no limit, 'kept' to keep its limit here
--   ARGV[4]  revision      which of the operator's changes this is
--   Returns  1  done; nothing is written for an account without work and limits here: its next submit brings them
--            0  the queue is not registered
--
-- uses keys:     QUEUE, queue
-- uses pending:  counted
-- uses share:    bring_limits, update_turns, write_limits

local meta, queue, account, most_running = KEYS[1], keys.QUEUE, ARGV[1], ARGV[3]

if redis.call('EXISTS', meta) == 0 then return 0 end
local held = redis.call('HGET', keys.queue(queue, 'limits'), account)
if not held and pending.counted(queue, 'queued', account) + pending.counted(queue, 'running', account) == 0 then return 1 end

if most_running == 'kept' then most_running = string.match(held or '1  0', '^%S+ (%S*) ') end
local text = share.bring_limits(queue, account, ARGV[2], most_running, ARGV[4])
if text then share.write_limits(queue, account, text) end
share.update_turns(queue, account)
return 1
