#!lua flags=allow-oom
-- erase: delete a terminal prediction at once with all its data, because its caller asks for it or an operator erases the
-- account. An owed webhook is dropped too.
--
--   KEYS[1]  record   hash  {p}:rec:<id>
--   ARGV[1]  account  whose it must be
--   ARGV[2]  kind     that it must be of, '' for a prediction
--   Returns  'erased'
--            'unknown'  no such prediction of this account and kind
--            'running'  it has not ended: nothing was written
--
-- uses keys:     ID, clock, events, input, output, owed, queue
-- uses records:  TERMINAL
-- uses log:      write

local id, account, kind, now = keys.ID, ARGV[1], ARGV[2], keys.clock(ARGV[3])

local r = redis.call('HMGET', KEYS[1], 'account', 'status', 'queue', 'kind')
if r[1] ~= account or (r[4] or '') ~= kind then return 'unknown' end
if not records.TERMINAL[r[2]] then return 'running' end

redis.call('ZREM', keys.owed(), id)
redis.call('ZREM', keys.queue(r[3], 'dead'), id)
redis.call('UNLINK', KEYS[1], keys.input(id), keys.output(id), keys.events(id))
log.write('erased', id, r[3], account, now)
return 'erased'
