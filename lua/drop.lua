#!lua flags=allow-oom
-- drop: take a dead letter off the list. Its data lives on as long as that of any prediction that has just ended.
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  queue
--   Returns  1  dropped
--            0  it is no dead letter: nothing was written
--
-- uses keys:     ID, clock, events, input, owed, queue
-- uses records:  DATA_TTL_MS
-- uses log:      write

local id, queue, now = keys.ID, ARGV[1], keys.clock(ARGV[2])

if not redis.call('ZSCORE', keys.queue(queue, 'dead'), id) then return 0 end

local r = redis.call('HMGET', KEYS[1], 'data_ttl_ms', 'account')
local data_ttl_ms = r[1] or redis.call('HGET', keys.queue(queue, 'meta'), 'data_ttl_ms') or records.DATA_TTL_MS
-- An owed webhook needs the data. `deliver` shortens its lifetime once the webhook is no longer owed.
local is_owed = redis.call('ZSCORE', keys.owed(), id)
redis.call('ZREM', keys.queue(queue, 'dead'), id)
if not is_owed then
  for _, key in ipairs({ keys.input(id), keys.events(id) }) do redis.call('PEXPIRE', key, data_ttl_ms, 'LT') end
end
if r[2] then log.write('dropped', id, queue, r[2], now) end -- else its record is gone, and it only leaves the list
return 1
