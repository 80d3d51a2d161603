-- lib/slot: refuse while the slot of KEYS[1] is on its way to another server of the Cluster, key by key. Of such a slot a
-- server shows the keys that it has, and refuses those that it has not, new ones too: a script would stop half-way
-- through its writes. Put in front of every script in a Cluster, and nowhere else.
-- Without a hash tag a script has no keys but KEYS: those the server itself looks at, before it begins.
local SLOT = string.match(KEYS[1], '^{[^}]+}')
if SLOT and type(redis.pcall('EXISTS', SLOT .. ':absent')) == 'table' then
  return redis.error_reply('TRYAGAIN the slot is on its way to another server')
end
