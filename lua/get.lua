#!lua flags=no-writes
-- get: return one prediction as it is now, with the data that still exists.
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  outlook  '1' to include the outlook of a waiting one, the costly part
--   ARGV[2]  most     bytes of input, output, logs and events together; '' for no bound
--   Returns  {record, input, output and logs, events, outlook}   flat lists; input '' once it was removed
--                                                       an event: kind, ms and data, with a space between
--                                                       events only while it runs: after the end output and logs tell all.
--                                                       Of a call of OpenAI's API the first 4,096: all 100,000 of a long
--                                                       one would hold the server up for 0.2 s
--                                                       outlook as lib/outlook has it, only while it waits and where it
--                                                       was asked for
--            {record, '', {}, {}, {}, bytes}            there is more than that: so much, and none of it here
--            {}                                         no such prediction
--
-- uses keys:     ID, clock, events, input, output
-- uses records:  TERMINAL, parse
-- uses outlook:  of

local MOST_OF_CALL = 4096
local id, hope, most = keys.ID, ARGV[1] == '1', tonumber(ARGV[2])

-- The answer, unless what it holds is too much: only Lua's copy of it is made for nothing then.
local function bounded(flat, input, ended, events)
  local size = #input
  for i = 2, #ended, 2 do size = size + #ended[i] end
  for _, entry in ipairs(events) do size = size + #entry end
  if most and size > most then return { flat, '', {}, {}, {}, size } end
  return { flat, input, ended, events, {} }
end

local flat = redis.call('HGETALL', KEYS[1])
if #flat == 0 then return {} end
local r = records.parse(flat)
local input = redis.call('GET', keys.input(id)) or ''
if records.TERMINAL[r.status] then return bounded(flat, input, redis.call('HGETALL', keys.output(id)), {}) end
if r.token == '' and not (most and #input > most) then return { flat, input, {}, {}, hope and r.leaving == '' and r.moved == '' and outlook.of(id, r, keys.clock(ARGV[3])) or {} } end
local last = r.endpoint ~= '' and MOST_OF_CALL - 1 or -1
local events = r.status == 'processing' and redis.call('LRANGE', keys.events(id), 0, last) or {}
return bounded(flat, input, {}, events)
