#!lua
-- deploy: write or remove a deployment, unless it changed since its writer read it.
--
--   KEYS[1]  deployment   string  {a:<account>}:deployment:<name>
--   KEYS[2]  deployments  zset    {a:<account>}:deployments
--   ARGV[1]  name
--   ARGV[2]  was      what its writer read, '' where there was none
--   ARGV[3]  becomes  '' to remove it
--   ARGV[4]  created_ms
--   ARGV[5]  most     deployments that one account may have
--   Returns  'written'  also if it is exactly that already
--            'changed'  another writer was faster: nothing was written
--            'full'     one more would be too many: nothing was written

local name, was, becomes, created_ms, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local is = redis.call('GET', KEYS[1]) or ''
if is == becomes then return 'written' end
if is ~= was then return 'changed' end
if is == '' and redis.call('ZCARD', KEYS[2]) >= most then return 'full' end

if becomes == '' then
  redis.call('ZREM', KEYS[2], name)
  redis.call('DEL', KEYS[1])
else
  redis.call('ZADD', KEYS[2], created_ms, name)
  redis.call('SET', KEYS[1], becomes)
end
return 'written'
