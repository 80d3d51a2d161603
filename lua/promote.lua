#!lua flags=allow-oom
-- promote: put in line what is due now, retries and what its caller planned, give turns to accounts whose hours have begun,
-- and wake a director when an open breaker may be tried. Claims give these turns too, but a model that is not loaded has none.
--
--   KEYS[1]  delayed  zset  {p}:q:<queue>:delayed
--   ARGV[1]  limit    most promoted in this call
--   Returns  how many were promoted
--
-- uses keys:     QUEUE, clock, queue, record
-- uses records:  TERMINAL, read
-- uses ready:    ring
-- uses pending:  count
-- uses share:    file_now, open_due
-- uses breaker:  is_cool

local queue, limit, now = keys.QUEUE, ARGV[1], keys.clock(ARGV[2])

local m = redis.call('HMGET', keys.queue(queue, 'meta'), 'breaker', 'open_until', 'cool_ms')

share.open_due(queue, now)
local promoted = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], id)
  local r = records.read(id)
  if r and not records.TERMINAL[r.status] and r.mid == '' then
    -- directors are sized by what comes, and this comes now
    if r.start_after ~= '' and r.claims == '0' then pending.count('tally', 'accepted:' .. r.lane, 1) end
    redis.call('HSET', keys.record(id), unpack(share.file_now(id, r)))
    promoted = promoted + 1
  end
end
if m[1] == 'open' and breaker.is_cool(m[2], m[3], now) then ready.ring(queue) end
return promoted
