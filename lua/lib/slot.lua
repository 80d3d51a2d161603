-- lib/slot: refuse while the slot of KEYS[1] migrates to another server of the Cluster, key by key. A server of such a slot
-- serves the keys that it has and refuses all others, new ones too, so a script would stop in the middle of its writes.
-- Put in front of every script in a Cluster, and nowhere else.
-- A script without a hash tag has no keys but KEYS, which the server itself checks before it begins.
local SLOT = string.match(KEYS[1], '^{[^}]+}')
if SLOT and type(redis.pcall('EXISTS', SLOT .. ':absent')) == 'table' then
  return redis.error_reply('TRYAGAIN the slot is on its way to another server')
end
