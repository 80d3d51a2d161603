#!lua
-- open_batch: accept a batch: its hash, its place on its account's list, and among the batches that wait for a keeper.
-- The score there is its time and an hour for each live batch of its account: a hundred batches of one account leave turns
-- to the others. All but `idem` live for ttl_ms, longer than any batch.
--
--   KEYS[1]  batch    hash  {a:}:batch:<id>
--   KEYS[2]  batches  zset  {a:}:batches
--   KEYS[3]  listing  zset  {a:}:batches:<account>
--   KEYS[4]  live     zset  {a:}:batches:<account>:live
--   KEYS[5]  idem     string  {a:}:batches:<account>:key:<hash>, or the batch's key without one
--   KEYS[6]  all_batches  zset  {a:}:all_batches
--   ARGV[1]  member     of `batches`
--   ARGV[2]  batch_id
--   ARGV[3]  created_ms
--   ARGV[4]  ttl_ms
--   ARGV[5]  most       batches on the list; those older than ttl_ms leave it
--   ARGV[6]  most_live  that have not ended
--   ARGV[7]  fingerprint  of the request, '' without an idempotency key
--   ARGV[8]  idempotency_ttl_ms
--   ARGV[9…] field, value of the batch
--   Returns  'opened'    also if it was before
--            'full'      the account has too many: nothing was written
--            'mismatch'  the idempotency key was used with another request
--            an id       that of the batch which the key made

local member, batch_id, created, ttl, most, most_live = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local fingerprint = ARGV[7]
local STEP_MS = 3600000

if redis.call('EXISTS', KEYS[1]) == 1 then return 'opened' end
local known = fingerprint ~= '' and redis.call('GET', KEYS[5])
if known then
  local id, of = string.match(known, '^(%S+) (%S+)$')
  return of == fingerprint and id or 'mismatch'
end
local over = string.format('%d', created - ttl)
local live = redis.call('ZCOUNT', KEYS[4], over, '+inf')
if live >= most_live or redis.call('ZCOUNT', KEYS[3], over, '+inf') >= most then return 'full' end

local fields = {}
for i = 9, #ARGV, 2 do fields[#fields + 1], fields[#fields + 2] = ARGV[i], ARGV[i + 1] end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('ZADD', KEYS[2], string.format('%d', created + live * STEP_MS), member)
for _, listing in ipairs({ KEYS[3], KEYS[4] }) do
  redis.call('ZREMRANGEBYSCORE', listing, '-inf', '(' .. over)
  redis.call('ZADD', listing, ARGV[3], batch_id)
end
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', '(' .. over)
redis.call('ZADD', KEYS[6], ARGV[3], batch_id .. ' ' .. string.match(member, '^%S+'))
for _, place in ipairs({ 1, 2, 3, 4, 6 }) do redis.call('PEXPIRE', KEYS[place], ttl) end
if fingerprint ~= '' then redis.call('SET', KEYS[5], batch_id .. ' ' .. fingerprint, 'PX', ARGV[8]) end
return 'opened'
