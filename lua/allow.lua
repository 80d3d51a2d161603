#!lua flags=allow-oom
-- allow: change what a token may do, and until when. A token that was revoked meanwhile does not come back.
--
--   KEYS[1]  token  hash  token:<digest>
--   ARGV[1]  expires_ms  when it expires from now on; 0: never; '': as before
--   ARGV[2…] field, value  its scopes, lanes or label
--   Returns  1  done
--            0  there is no such token: nothing was written

local token, expires_ms = KEYS[1], ARGV[1]

if redis.call('EXISTS', token) == 0 then return 0 end

for i = 2, #ARGV, 2 do redis.call('HSET', token, ARGV[i], ARGV[i + 1]) end
if expires_ms == '0' then
  redis.call('HSET', token, 'expires', '')
  redis.call('PERSIST', token)
elseif expires_ms ~= '' then
  redis.call('HSET', token, 'expires', expires_ms)
  redis.call('PEXPIREAT', token, expires_ms)
end
return 1
