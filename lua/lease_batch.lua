#!lua flags=allow-oom
-- lease_batch: give a keeper the right to a batch, extend it, or give it back. The token is random: a write with another
-- one changes nothing, see write_batch.
--
--   KEYS[1]  batch    hash  {a:}:batch:<id>
--   KEYS[2]  batches  zset  {a:}:batches
--   ARGV[1]  member    of `batches`
--   ARGV[2]  token     of the keeper that asks
--   ARGV[3]  lease_ms  0: it gives the batch back
--   Returns  the status if it is the keeper's now, or was given back
--            'busy'  another keeper has it: nothing was written
--            'gone'  there is no such batch, and it waits no more
--
-- uses keys:     clock

local member, token, lease_ms, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), keys.clock(ARGV[4])

local status, holder, till = unpack(redis.call('HMGET', KEYS[1], 'status', 'token', 'until'))
if not status then
  redis.call('ZREM', KEYS[2], member)
  return 'gone'
end
if holder and holder ~= token and tonumber(till) > now then return 'busy' end

if lease_ms > 0 then
  redis.call('HSET', KEYS[1], 'token', token, 'until', string.format('%d', now + lease_ms))
elseif holder == token then
  redis.call('HSET', KEYS[1], 'until', 0)
end
return status
