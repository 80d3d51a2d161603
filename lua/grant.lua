#!lua flags=allow-oom
-- grant: store a session of a person, or a link that makes one session. A link is used up by the session that it makes.
-- Entries that are over are removed. Beyond `most` sessions (or links) of an account, the token that has the most of them
-- loses its oldest one: so a token cannot end the sessions of others by opening its own. It reads up to 200 entries; with
-- an unknown link it reads none.
--
--   KEYS[1]  sessions  hash  {a:<account>}:sessions  s:<digest>, l:<digest> -> <until ms> <since ms> <token digest> <scopes>
--   ARGV[1]  entry     s: and the digest of a session, or l: and that of a link
--   ARGV[2]  link      the link that this session uses up: its token and scopes are the session's; '' without
--   ARGV[3]  token_digest  of the token that it comes from; '' with a link
--   ARGV[4]  scopes    separated by commas; '' with a link
--   ARGV[5]  life_ms
--   ARGV[6]  most      sessions, or links, of an account
--   Returns  the entry as it is stored, also if it was before
--            'gone'  there is no such link: nothing was written
--
-- uses keys:     clock

local entry, link, token, scopes, life_ms, most, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), keys.clock(ARGV[7])

local known = redis.call('HGET', KEYS[1], entry)
if known then return known end
if link ~= '' and redis.call('HEXISTS', KEYS[1], link) == 0 then return 'gone' end

local stored, over, same, last = redis.call('HGETALL', KEYS[1]), {}, {}, now + life_ms
for i = 1, #stored, 2 do
  local name, till, since, from, with = stored[i], string.match(stored[i + 1], '^(%d+) (%d+) (%S+) (%S+)$')
  till = tonumber(till)
  if till <= now then
    over[#over + 1] = name
  else
    last = math.max(last, till)
    if string.sub(name, 1, 2) == string.sub(entry, 1, 2) then same[#same + 1] = { tonumber(since), name, from } end
    if name == link then token, scopes = from, with end
  end
end
if token == '' then return 'gone' end

if link ~= '' then over[#over + 1] = link end
if #same >= most then
  local count, largest = { [token] = 1 }, 0
  for _, each in ipairs(same) do count[each[3]] = (count[each[3]] or 0) + 1 end
  for _, number in pairs(count) do largest = math.max(largest, number) end
  local oldest
  for _, each in ipairs(same) do
    if count[each[3]] == largest and (not oldest or each[1] < oldest[1]) then oldest = each end
  end
  over[#over + 1] = (oldest or same[1])[2]
end
if #over > 0 then redis.call('HDEL', KEYS[1], unpack(over)) end
local value = string.format('%d %d %s %s', now + life_ms, now, token, scopes)
redis.call('HSET', KEYS[1], entry, value)
redis.call('PEXPIREAT', KEYS[1], string.format('%d', last))
return value
