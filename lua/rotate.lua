#!lua flags=allow-oom
-- rotate: give an account a new webhook secret. The former one also signs until its time is over.
--
--   KEYS[1]  account  hash  account:<name>  webhook_secret; webhook_secret_until:<ms> of each former one
--   ARGV[1]  secret
--   ARGV[2]  keep_ms  how long the former one lives on; 0: all former ones end now
--   Returns  'rotated'  also if this secret is the current one already
--            'unknown'  there is no such account: nothing was written
--            'full'     too many former ones still live: nothing was written
--
-- uses keys:     clock

local secret, keep_ms, now = ARGV[1], tonumber(ARGV[2]), keys.clock(ARGV[3])
local MOST_FORMER = 4 -- each adds a signature to every webhook's header

local current = redis.call('HGET', KEYS[1], 'webhook_secret')
if not current then return 'unknown' end
if current == secret then return 'rotated' end

local over, living = {}, 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local till = tonumber(string.match(field, '^webhook_secret_until:(%d+)$'))
  if till and (till <= now or keep_ms == 0) then
    over[#over + 1] = field
  elseif till then
    living = living + 1
  end
end
if keep_ms > 0 and living >= MOST_FORMER then return 'full' end

if #over > 0 then redis.call('HDEL', KEYS[1], unpack(over)) end
if keep_ms > 0 then
  local till = now + keep_ms
  while redis.call('HEXISTS', KEYS[1], 'webhook_secret_until:' .. till) == 1 do till = till + 1 end
  redis.call('HSET', KEYS[1], 'webhook_secret_until:' .. till, current)
end
redis.call('HSET', KEYS[1], 'webhook_secret', secret)
return 'rotated'
