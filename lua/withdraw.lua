#!lua flags=allow-oom
-- withdraw: remove a model from the catalogue, or note that one of its versions goes: its runs stay counted, once each.
--
--   KEYS[1]  model    hash  model:<owner>/<name>
--   ARGV[1]  what     'model'  takes the model away
--                     'going'  this version is about to go
--                     'gone'   it is gone
--   ARGV[2]  version  '' for 'model'
--   ARGV[3]  runs     'going': all predictions that the version accepted
--   ARGV[4]  latest   'gone': the model's latest version from now on, if this one was it; '' for none
--   Returns  'done'      also if there is no such model
--            'versions'  the model has a version, and stays

local model, what, version, runs, latest = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local going = 'going:' .. version

local m = redis.call('HMGET', model, 'created', 'latest', going)
if not m[1] then return 'done' end
if what == 'model' then
  if m[2] and m[2] ~= '' then return 'versions' end
  redis.call('DEL', model)
elseif what == 'going' then
  -- a deletion that was cut short finds less the second time: some queues are gone then
  redis.call('HSET', model, going, math.max(tonumber(m[3] or 0), tonumber(runs)))
else
  if m[3] then redis.call('HINCRBY', model, 'former_runs', m[3]) end
  redis.call('HDEL', model, going)
  if (m[2] or '') == version then redis.call('HSET', model, 'latest', latest) end
end
return 'done'
