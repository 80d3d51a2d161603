#!lua flags=allow-oom
-- erase: delete a terminal prediction at once with all its data, on its caller's request. An owed webhook is dropped too.
--
--   KEYS[1]  record   hash  {p}:rec:<id>
--   ARGV[1]  account  whose it must be
--   Returns  'erased'
--            'unknown'  no such prediction of this account; trainings and procedures count as unknown
--            'running'  it has not ended: nothing was written

local id, account, now = ID, ARGV[1], clock(ARGV[2])

local r = redis.call('HMGET', KEYS[1], 'account', 'status', 'queue', 'kind')
if r[1] ~= account or r[4] then return 'unknown' end
if not TERMINAL[r[2]] then return 'running' end

redis.call('ZREM', owed_key(), id)
redis.call('ZREM', queue_key(r[3], 'dead'), id)
redis.call('UNLINK', KEYS[1], input_key(id), output_key(id), events_key(id))
log('erased', id, r[3], account, now)
return 'erased'
