#!lua flags=allow-oom
-- limit: set one tenant's share of a queue: its weight, and its most running predictions.
-- Every enqueue brings both; this script is for predictions that already wait.
-- Uses lib/keys lib/place lib/estimate lib/share
--
--   KEYS[1]  meta          hash  {p}:q:<queue>:meta
--   ARGV[1]  queue
--   ARGV[2]  tenant
--   ARGV[3]  weight        1 by default
--   ARGV[4]  most_running  '' for no limit, 'kept' to keep its limit here
--   ARGV[5]  revision      which of the operator's changes this is
--   Returns  1  done; nothing is written for a tenant without work and limits here: its next submit brings them
--            0  the queue is not registered

local meta, queue, tenant, most_running = KEYS[1], ARGV[1], ARGV[2], ARGV[4]

if redis.call('EXISTS', meta) == 0 then return 0 end
local known = redis.call('HGET', queue_key(queue, 'limits'), tenant)
if not known and counted(queue, 'queued', tenant) + counted(queue, 'running', tenant) == 0 then return 1 end

if most_running == 'kept' then most_running = string.match(known or '1  0', '^%S+ (%S*) ') end
local text = bring_limits(queue, tenant, ARGV[3], most_running, ARGV[5])
if text then write_limits(queue, tenant, text) end
join_or_part(queue, tenant)
return 1
