#!lua flags=no-writes
-- replay: return a prediction's events after a number, as many as fit one answer, and its state.
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  after       the last known number; one from another life, or above the newest, returns all events
--   ARGV[2]  count       most events
--   ARGV[3]  most_bytes  total size above which no other event is added
--   ARGV[4]  whole       1: return an event that is larger by itself too; else the answer ends before it
--   ARGV[5]  life        each revival begins a life with a new list: in the n-th the numbers begin after n × this
--   Returns  {account, status, ticket, moved, last, first, event, …}
--                moved: the server that it moved to, or ''; last: number of the newest event, 0 once they were removed
--                first: number of the first event here; an event: kind, ms and data separated by spaces
--            {}  no such prediction
--
-- uses keys:     ID, events

local id, after, most, bytes, whole = keys.ID, tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local STEP = 16 -- read at a time: one event may be megabytes

local r = redis.call('HMGET', KEYS[1], 'account', 'status', 'ticket', 'moved', 'revivals')
if not r[1] then return {} end
local key = keys.events(id)
local last = redis.call('LLEN', key)
local born = (tonumber(r[5] or '') or 0) * tonumber(ARGV[5]) -- what this life's numbers begin after
local at = after - born
if at < 0 or at > last then at = 0 end

local reply, size = { r[1], r[2], r[3] or '', r[4] or '', last > 0 and born + last or 0, born + at + 1 }, 0
local head = #reply
while #reply - head < most and size < bytes and at < last do
  for _, entry in ipairs(redis.call('LRANGE', key, at, at + math.min(STEP, most - (#reply - head)) - 1)) do
    if size >= bytes then break end
    if #entry > bytes and not whole then return reply end
    reply[#reply + 1], size, at = entry, size + #entry, at + 1
  end
end
return reply
