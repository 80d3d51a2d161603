#!lua flags=no-writes
-- get: one prediction as it is at this moment, with whatever of its data still lives.
-- Uses lib/keys
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  id
--   Returns  {record, input, output and logs, events}   flat lists; input '' once it was removed
--                                                       an event: kind, ms and data, with a space between
--                                                       events only while it runs: after the end output and logs tell all
--            {}                                         no such prediction

local id = ARGV[1]

local r = redis.call('HGETALL', KEYS[1])
if #r == 0 then return {} end
local status = redis.call('HGET', KEYS[1], 'status')
local input = redis.call('GET', input_key(id)) or ''
if TERMINAL[status] then return { r, input, redis.call('HGETALL', output_key(id)), {} } end
local events = status == 'processing' and redis.call('LRANGE', events_key(id), 0, -1) or {}
return { r, input, {}, events }
