#!lua
-- amend: make a model of the catalogue, or change what is said of it or of a version, each only in the expected state.
--
--   KEYS[1]  model  hash  model:<owner>/<name>, or version:<owner>/<name>:<id>
--   ARGV[1]  what   'make' or 'change'
--   ARGV[2]  nonce  of the call that makes it, so that a repeated call gets the same answer; '' else
--   ARGV[3…] field, value  what is said of it; '' takes a field back
--   Returns  'done'
--            'exists'    make: there is one of this name
--            'unknown'   change: there is no such model or version

local model, what, nonce = KEYS[1], ARGV[1], ARGV[2]

local m = redis.call('HMGET', model, 'created', 'nonce')
if what == 'make' and m[1] then return m[2] == nonce and 'done' or 'exists' end -- a director leaves no nonce
if what == 'change' and not m[1] then return 'unknown' end

if what == 'make' then redis.call('HSET', model, 'nonce', nonce) end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', model, ARGV[i])
  else
    redis.call('HSET', model, ARGV[i], ARGV[i + 1])
  end
end
return 'done'
