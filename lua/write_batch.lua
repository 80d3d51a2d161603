#!lua flags=allow-oom
-- write_batch: change a batch, if it is still as its writer knows it. A repeated call is known by its nonce.
--
--   KEYS[1]  batch    hash  {a:}:batch:<id>
--   KEYS[2]  batches  zset  {a:}:batches
--   KEYS[3]  live     zset  {a:}:batches:<account>:live
--   ARGV[1]  member     of `batches`
--   ARGV[2]  batch_id   which leaves `live`; '' if it stays
--   ARGV[3]  token      of the keeper that has it; '' from a caller, who needs none
--   ARGV[4]  allowed    statuses in which it may be, with a space after each
--   ARGV[5]  parts      how many it must have; '' for any number
--   ARGV[6]  nonce
--   ARGV[7]  turn       its score in `batches` from now on; '' if that stays, '-' if it leaves
--   ARGV[8…] field, value. `filed` only grows: a write of it may come late
--   Returns  'written'  also if this call was carried out before
--            'lost'     another keeper has it, or it is gone: nothing was written
--            'changed'  it has another status or other parts: nothing was written

local member, batch_id, token, allowed, parts, nonce, turn = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local status, holder, has, last, filed = unpack(redis.call('HMGET', KEYS[1], 'status', 'token', 'parts', 'nonce', 'filed'))
if last == nonce then return 'written' end
if not status or (token ~= '' and holder ~= token) then return 'lost' end
if not string.find(' ' .. allowed, ' ' .. status .. ' ', 1, true) or (parts ~= '' and parts ~= (has or '0')) then return 'changed' end

local fields = {}
for i = 8, #ARGV, 2 do
  local is_late = ARGV[i] == 'filed' and tonumber(ARGV[i + 1]) < tonumber(filed or 0)
  if not is_late then fields[#fields + 1], fields[#fields + 2] = ARGV[i], ARGV[i + 1] end
end
redis.call('HSET', KEYS[1], 'nonce', nonce, unpack(fields))
if turn == '-' then
  redis.call('ZREM', KEYS[2], member)
elseif turn ~= '' then
  redis.call('ZADD', KEYS[2], 'XX', turn, member)
end
if batch_id ~= '' then redis.call('ZREM', KEYS[3], batch_id) end
return 'written'
