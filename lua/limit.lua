#!lua flags=allow-oom
-- limit: set one tenant's share of a queue: its weight, and its most running predictions.
-- Every enqueue brings both; this script is for predictions that already wait.
--
--   KEYS[1]  meta          hash  {p}:q:<queue>:meta
--   ARGV[1]  tenant
--   ARGV[2]  weight        1 by default
--   ARGV[3]  most_running  '' for no limit, 'kept' to keep its limit here
--   ARGV[4]  revision      which of the operator's changes this is
--   Returns  1  done; nothing is written for a tenant without work and limits here: its next submit brings them
--            0  the queue is not registered

local meta, queue, tenant, most_running = KEYS[1], QUEUE, ARGV[1], ARGV[3]

if redis.call('EXISTS', meta) == 0 then return 0 end
local held = redis.call('HGET', queue_key(queue, 'limits'), tenant)
if not held and counted(queue, 'queued', tenant) + counted(queue, 'running', tenant) == 0 then return 1 end

if most_running == 'kept' then most_running = string.match(held or '1  0', '^%S+ (%S*) ') end
local text = bring_limits(queue, tenant, ARGV[2], most_running, ARGV[4])
if text then write_limits(queue, tenant, text) end
join_or_part(queue, tenant)
return 1
