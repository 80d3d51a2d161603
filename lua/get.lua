#!lua flags=no-writes
-- get: one prediction as it is at this moment, with whatever of its data still lives.
-- Uses lib/keys lib/place lib/estimate lib/share lib/outlook
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  id
--   ARGV[2]  now_ms  '' for the server's clock
--   ARGV[3]  hope    '1' for the outlook of one that waits: it is the dear part
--   Returns  {record, input, output and logs, events, outlook}   flat lists; input '' once it was removed
--                                                       an event: kind, ms and data, with a space between
--                                                       events only while it runs: after the end output and logs tell all
--                                                       outlook as lib/outlook has it, only while it waits and where it
--                                                       was asked for
--            {}                                         no such prediction

local id, hope = ARGV[1], ARGV[3] == '1'

local flat = redis.call('HGETALL', KEYS[1])
if #flat == 0 then return {} end
local r = as_record(flat)
local input = redis.call('GET', input_key(id)) or ''
if TERMINAL[r.status] then return { flat, input, redis.call('HGETALL', output_key(id)), {}, {} } end
if r.token == '' then return { flat, input, {}, {}, hope and r.leaving == '' and r.moved == '' and outlook(id, r, clock(ARGV[2])) or {} } end
local events = r.status == 'processing' and redis.call('LRANGE', events_key(id), 0, -1) or {}
return { flat, input, {}, events, {} }
