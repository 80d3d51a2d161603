#!lua flags=no-writes
-- story: everything about one prediction without its large data: its origin, its claims, its reason to wait.
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   Returns  {now_ms, record, events, outlook, attempts, due, lease, owed, dead}
--                record and events are flat lists; per event its place, then kind, ms and data separated by spaces
--                events without output, logs and metrics: only the first and last of a long run; empty once removed
--                outlook as lib/outlook has it, only while it waits; attempts: the queue's maximum
--                due, lease, owed: ms of the next attempt, the lease's end, the webhook's next attempt; '' without one
--                dead: 1 for a dead letter
--            {}  no such prediction
--
-- uses keys:     ID, clock, events, owed, queue
-- uses records:  TERMINAL, parse
-- uses outlook:  of

local id, now = keys.ID, keys.clock(ARGV[1])
local LOOK = 500 -- events looked at from each end: one run may have written a hundred thousand
local BULK = { output = true, logs = true, metric = true }

local flat = redis.call('HGETALL', KEYS[1])
if #flat == 0 then return {} end
local r = records.parse(flat)

local key, events = keys.events(id), {}
local length = redis.call('LLEN', key)
local function look(from, to)
  for i, entry in ipairs(redis.call('LRANGE', key, from, to)) do
    if not BULK[string.match(entry, '^%S+')] then
      events[#events + 1] = from + i
      events[#events + 1] = entry
    end
  end
end
look(0, LOOK - 1)
if length > LOOK then look(math.max(LOOK, length - LOOK), -1) end

local function at(index) return redis.call('ZSCORE', index, id) or '' end

local waits = not records.TERMINAL[r.status] and r.token == '' and r.leaving == '' and r.moved == ''
return {
  now, flat, events, waits and outlook.of(id, r, now) or {},
  redis.call('HGET', keys.queue(r.queue, 'meta'), 'attempts') or '',
  at(keys.queue(r.queue, 'delayed')), at(keys.queue(r.queue, 'lease')), at(keys.owed()),
  at(keys.queue(r.queue, 'dead')) ~= '' and 1 or 0,
}
