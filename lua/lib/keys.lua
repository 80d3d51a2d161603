-- lib/keys: spell keys of ids and queues that a script finds while it runs, and read the server's clock.
-- director/broker/keys.py owns the spelling; a test compares the two. All keys carry the hash tag of KEYS[1].

local TAG = string.match(KEYS[1], '^{p%d+}')
-- The id if KEYS[1] is a record, and the queue if it is a key of one.
local ID = string.match(KEYS[1], ':rec:(.+)$')
local QUEUE = string.match(KEYS[1], ':q:(.+):%l+$')
local GROUP = 'directors'
local ALIVE_MS = 20000 -- a director silent for longer is not counted. Nor is one whose last heartbeat is as far
-- ahead: it came before the clock went back

local function record_key(id) return TAG .. ':rec:' .. id end
local function input_key(id) return TAG .. ':in:' .. id end
local function output_key(id) return TAG .. ':out:' .. id end
local function events_key(id) return TAG .. ':ev:' .. id end
local function channel(id) return TAG .. ':ch:' .. id end
local function owed_key() return TAG .. ':owed' end
local function log_key() return TAG .. ':log' end
local function unspent_key() return TAG .. ':unspent' end
local function queue_key(queue, what) return TAG .. ':q:' .. queue .. ':' .. what end
local function stream_key(queue, lane, number) return queue_key(queue, lane .. ':s' .. number) end
local function kick_channel(consumer) return 'kick:' .. consumer end
local function ends_channel(waiter) return 'kick:ends:' .. waiter end

-- Milliseconds by the server's clock, which is read once; a test may pass its own.
local server_ms
local function clock(given)
  if given and given ~= '' then return tonumber(given) end
  if not server_ms then
    local time = redis.call('TIME')
    server_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return server_ms
end

-- The record as a table, or nil. Absent fields read as ''.
local EMPTY = { __index = function() return '' end }
local function as_record(flat)
  local r = {}
  for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
  return setmetatable(r, EMPTY)
end

local function read(id)
  local flat = redis.call('HGETALL', record_key(id))
  return #flat > 0 and as_record(flat) or nil
end

local TERMINAL = { succeeded = true, failed = true, canceled = true, aborted = true }

-- True if its caller wants a terminal webhook. OWED_MS: the longest time that one is owed.
local function wants_end(r) return r.webhook ~= '' and string.find(r.events, 'completed', 1, true) ~= nil end
local OWED_MS = 345600000

-- Lifetimes if the queue's own are lost.
local DATA_TTL_MS, RECORD_TTL_MS = 3600000, 604800000

-- Correct a time by how long ago it was on the director's clock, '' if unknown. The call may have been on its way for up to
-- 30 s, because a large end waits for those before it. If they differ by more, the server's clock has stepped since.
local function put_right(at, ago_ms, now)
  if at == '' or ago_ms == '' then return at end
  local late_ms = now - ago_ms - at
  return late_ms >= -5000 and late_ms <= 30000 and at or now - ago_ms
end

local function past(when, now) return when ~= '' and tonumber(when) <= now end

-- The next moment at which a waiting prediction may have to end, or nil.
local function soonest(r)
  local deadline, start_by = tonumber(r.deadline), r.begun == '' and tonumber(r.start_by) or nil
  if deadline and start_by then return math.min(deadline, start_by) end
  return deadline or start_by
end

-- An event's number is its place in the list, from 1. A script that appends also raises `seq` in the record.
local function entry(kind, now, data) return kind .. ' ' .. now .. ' ' .. data end
local function append(id, entries)
  for first = 1, #entries, 1000 do -- a call takes only so many arguments
    redis.call('RPUSH', events_key(id), unpack(entries, first, math.min(#entries, first + 999)))
  end
end

-- Return what pcall caught as an error reply.
local function as_reply(fault) return { err = type(fault) == 'table' and fault.err or tostring(fault) } end
