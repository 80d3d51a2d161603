#!lua
-- revive: return a dead letter to its queue, with all its attempts before it. Only for an operator: it is the one way
-- out of a terminal status.
--
--   KEYS[1]  record   hash  {p}:rec:<id>
--   Returns  1  it waits again, without a deadline
--            0  it is no dead letter, or its input or the secret values in it were removed: nothing was written
--
-- uses keys:     ID, channel, clock, events, input, output, owed, queue
-- uses records:  append, entry, read
-- uses log:      write
-- uses pending:  count
-- uses requeue:  put_in

local id, now = keys.ID, keys.clock(ARGV[1])

local r = records.read(id)
if not r or r.status ~= 'failed' then return 0 end
if not redis.call('ZSCORE', keys.queue(r.queue, 'dead'), id) then return 0 end
if r.secret ~= '' or redis.call('EXISTS', keys.input(id)) == 0 then return 0 end

r.claims, r.begun, r.deadline, r.start_by = 0, '', '', ''
pending.count('tally', 'accepted:' .. r.lane, 1) -- as it starts and ends again
local placed = requeue.put_in(id, r, '', now)
redis.call('DEL', keys.events(id), keys.output(id)) -- the list restarts: it may be gone by now, and numbers are places
records.append(id, { records.entry('revived', now, '') })
log.write('revived', id, r.queue, r.account, now)
redis.call('HSET', KEYS[1], 'status', 'starting', 'started', '', 'completed', '', 'begun', '', 'error', '', 'code', '',
  'metrics', '', 'ended', '', 'metered', '', 'ran_ms', '', 'budgeted', '', 'used_before', '', 'deadline', '', 'start_by', '', 'start_after', '', 'attempt', 0, 'claims', 0, 'place', '', 'eta50', '', 'eta90', '',
  'seq', 1, 'told', '', 'tellings', 0, 'tellings_before', '', 'owed_since', '', 'next_telling', '', 'forwarded', '', unpack(placed))
if r.remote ~= '' then redis.call('HDEL', KEYS[1], 'remote') end
redis.call('HINCRBY', KEYS[1], 'revivals', 1)
redis.call('PERSIST', KEYS[1])
redis.call('PERSIST', keys.input(id))
redis.call('ZREM', keys.queue(r.queue, 'dead'), id)
redis.call('ZREM', keys.owed(), id)
redis.call('PUBLISH', keys.channel(id), 1)
return 1
