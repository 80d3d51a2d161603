#!lua flags=allow-oom
-- stow: count the bytes that an account keeps in the store of files, and refuse those that its quota has no room for.
-- Expired entries no longer count: each call forgets up to a hundred of them.
--
--   KEYS[1]  stored        hash  {a:<account>}:stored        id -> bytes, and `total` of them all
--   KEYS[2]  stored_until  zset  {a:<account>}:stored_until  id -> when it is over, ms
--   ARGV[1]  name      a file's, or that of the prediction that put files out; '' only to ask
--   ARGV[2]  size      bytes that it takes, whatever it took before; 0: it is gone
--   ARGV[3]  most      bytes that the account may keep, '' for no limit
--   ARGV[4]  until_ms  when it is over
--   Returns  {fits, total, more}   fits: 0 where it would take more than before and there is no room: of the account
--            nothing was written. total: bytes counted then; more: 1 where there may be others that are over
--
-- uses keys:     clock

local stored, untils = KEYS[1], KEYS[2]
local id, bytes, most, until_ms, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), keys.clock(ARGV[5])

local AT_ONCE = 100

local over = redis.call('ZRANGEBYSCORE', untils, '-inf', now, 'LIMIT', 0, AT_ONCE)
local total = tonumber(redis.call('HGET', stored, 'total') or 0)
local is_kept = true
for place, size in ipairs(#over > 0 and redis.call('HMGET', stored, unpack(over)) or {}) do
  total = total - tonumber(size or 0)
  if over[place] == id then is_kept = false end
end
local had = is_kept and tonumber(redis.call('HGET', stored, id) or 0) or 0
local fits = bytes <= had or not most or total - had + bytes <= most

if #over > 0 then
  redis.call('ZREM', untils, unpack(over))
  redis.call('HDEL', stored, unpack(over))
end
if fits and bytes > 0 then
  redis.call('HSET', stored, id, bytes)
  redis.call('ZADD', untils, until_ms, id)
elseif fits and id ~= '' then
  redis.call('HDEL', stored, id)
  redis.call('ZREM', untils, id)
end
if fits then total = total - had + bytes end
local last = redis.call('ZREVRANGE', untils, 0, 0, 'WITHSCORES')
if #last == 0 then
  redis.call('UNLINK', stored, untils)
  return { fits and 1 or 0, 0, 0 }
end
-- written as digits: a number of Lua's would become one with an exponent
redis.call('HSET', stored, 'total', string.format('%d', total))
for _, key in ipairs({ stored, untils }) do redis.call('PEXPIREAT', key, string.format('%d', last[2])) end
return { fits and 1 or 0, total, #over == AT_ONCE and 1 or 0 }
