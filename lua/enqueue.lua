#!lua
-- enqueue: accept a prediction: record, input, first event, indexes and its place in a stream, all or nothing.
-- Not allow-oom: a full server refuses new work and finishes what it has.
-- Uses lib/keys lib/place
--
--   KEYS[1]  record    hash    {p}:rec:<id>
--   KEYS[2]  input     string  {p}:in:<id>
--   KEYS[3]  idem      string  {p}:idem:<account>:<model>:<hash>, or the record's key again when there is none
--   ARGV[1]  id
--   ARGV[2]  input         the caller's bytes
--   ARGV[3]  fingerprint   of the body, '' without an idempotency key
--   ARGV[4]  idem_ttl_ms
--   ARGV[5]  now_ms        '' for the server's clock
--   ARGV[6…] field, value  of the record: account, model, version, queue, lane, shard, cost, url, webhook, …
--                          `lifetime_ms` becomes `deadline`, `start_by_ms` becomes `start_by`
--   Returns  {'created', created_ms}  also when this very id was accepted before
--            {'replayed', id}         the idempotency key stands for that prediction
--            {'mismatch'}             the key was used with another body
--            {'unknown'}              nobody registered this queue

local id, input, fingerprint, idem_ttl_ms, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], clock(ARGV[5])

local created = redis.call('HGET', KEYS[1], 'created')
if created then return { 'created', created } end
if fingerprint ~= '' then
  local held = redis.call('GET', KEYS[3])
  if held then
    local known, print = string.match(held, '^(%S+) (%S+)$')
    if redis.call('EXISTS', record_key(known)) == 1 then -- a queue may keep its records for less than the key's day
      if print ~= fingerprint then return { 'mismatch' } end
      return { 'replayed', known }
    end
  end
end
local r = setmetatable({}, EMPTY)
for i = 6, #ARGV, 2 do r[ARGV[i]] = ARGV[i + 1] end
if redis.call('EXISTS', queue_key(r.queue, 'meta')) == 0 then return { 'unknown' } end

local fields = { 'status', 'starting', 'created', now, 'attempt', 0, 'claims', 0, 'seq', 1, 'token', '' }
local function add(field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end
local deadline = r.lifetime_ms ~= '' and now + r.lifetime_ms or nil
if deadline then add('deadline', deadline) end
if r.start_by_ms ~= '' then add('start_by', now + r.start_by_ms) end
for i = 6, #ARGV, 2 do
  if ARGV[i] ~= 'lifetime_ms' and ARGV[i] ~= 'start_by_ms' then add(ARGV[i], ARGV[i + 1]) end
end

local stream, mid = place(id, r)
add('stream', stream)
add('mid', mid)
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('SET', KEYS[2], input)
redis.call('ZADD', queue_key(r.queue, 'live'), now, id)
if deadline then redis.call('ZADD', queue_key(r.queue, 'deadline'), deadline, id) end
redis.call('RPUSH', events_key(id), 'created ' .. now .. ' ')
if fingerprint ~= '' then redis.call('SET', KEYS[3], id .. ' ' .. fingerprint, 'PX', idem_ttl_ms) end
return { 'created', now }
