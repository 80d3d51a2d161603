#!lua flags=allow-oom
-- stay: put a leaving prediction back in line, or end it if its caller canceled it meanwhile. Call it only after the other
-- server has refused it, see arrive.
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  site    of the server that it leaves for
--   Returns  'waiting', 'delayed' or 'canceled'
--            'gone'  it does not leave for there: nothing was written
--
-- uses keys:     ID, clock, queue
-- uses records:  read, since
-- uses ends:     end_now
-- uses requeue:  put_in

local id, site, now = keys.ID, ARGV[1], keys.clock(ARGV[2])

local r = records.read(id)
if not r or r.leaving ~= site or r.moved ~= '' then return 'gone' end

redis.call('ZREM', keys.queue(r.queue, 'leaving'), id)
redis.call('HSET', KEYS[1], 'leaving', '', 'due', '', unpack(requeue.put_in(id, r, r.due, records.since(r))))
if r.cancel ~= 'user' then return r.due ~= '' and 'delayed' or 'waiting' end
ends.end_now(id, records.read(id), 'canceled', {}, now)
return 'canceled'
