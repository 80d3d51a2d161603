#!lua
-- bind: bind an idempotency key to a prediction before that is placed at one of several servers. The caller that binds it
-- places it, and may bind it again as long as no other caller did. See api/sites/placing.py.
--
--   KEYS[1]  idem  string  {p}:idem:<account>:<model>:<hash>
--   ARGV[1]  prediction_id       '' for none: the key is free again
--   ARGV[2]  fingerprint         of the request
--   ARGV[3]  idempotency_ttl_ms
--   ARGV[4]  instead_of          the id that it is bound to so far, '' for none
--   Returns  {}                 it is bound, perhaps since a former call
--            {id, fingerprint, age_ms}  its other binding and the age of that: nothing was written

local key, id, fingerprint, ttl_ms, instead_of = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local holder, print = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)$')
if holder and holder ~= id and holder ~= instead_of then
  return { holder, print, ttl_ms - redis.call('PTTL', key) }
end
if id == '' then
  redis.call('DEL', key)
else
  redis.call('SET', key, id .. ' ' .. fingerprint, 'PX', ttl_ms)
end
return {}
