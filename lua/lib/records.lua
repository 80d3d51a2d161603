-- lib/records: read a prediction's record, and judge and extend what it says.
--
-- uses keys:     events, record

-- The record as a table, or nil. Absent and empty fields read as ''. It is made with room for the fields that each record has
-- once it is claimed: to grow six times took 4,000 instructions.
records.EMPTY = { __index = function() return '' end }
function records.parse(flat)
  local r = { status = '', created = '', attempt = '', claims = '', seq = '', arrival = '', place = '', account = '', queue = '',
    lane = '', shard = '', cost = '', model = '', version = '', token = '', holder = '', claimed = '' }
  for i = 1, #flat, 2 do
    local value = flat[i + 1]
    if value ~= '' then r[flat[i]] = value end
  end
  return setmetatable(r, records.EMPTY)
end

function records.read(id)
  local flat = redis.call('HGETALL', keys.record(id))
  return #flat > 0 and records.parse(flat) or nil
end

-- Read the fields that r has, each '' at first, and leave out all others. Not with HMGET: for each field Redis searches the
-- record from its start.
function records.pick(r, record)
  local flat = redis.call('HGETALL', record)
  for i = 1, #flat, 2 do
    if r[flat[i]] then r[flat[i]] = flat[i + 1] end
  end
end

-- Return a record with its id as one text for a reply, a map of MessagePack. As a list each of its words would be converted
-- alone: 32,000 instructions more of Redis, 56,000 of the director. All values are bytes that pass through as they are.
function records.pack(id, r)
  r.id = id
  return cmsgpack.pack(r)
end

records.TERMINAL = { succeeded = true, failed = true, canceled = true, aborted = true }

-- True if its caller wants a terminal webhook. OWED_MS: the longest time that one is owed.
function records.wants_end(r) return r.webhook ~= '' and string.find(r.events, 'completed', 1, true) ~= nil end
records.OWED_MS = 345600000

-- Lifetimes if the queue's own are lost.
records.DATA_TTL_MS, records.RECORD_TTL_MS = 3600000, 604800000

-- Correct a time by how long ago it was on the director's clock, '' if unknown. The call may have been on its way for up to
-- 30 s, because a large end waits for those before it. If they differ by more, the server's clock has stepped since.
function records.put_right(at, ago_ms, now)
  if at == '' or ago_ms == '' then return at end
  local late_ms = now - ago_ms - at
  return late_ms >= -5000 and late_ms <= 30000 and at or now - ago_ms
end

function records.past(when, now) return when ~= '' and tonumber(when) <= now end

-- When its wait began: with its creation, or at the time that its caller planned.
function records.since(r) return math.max(tonumber(r.created), tonumber(r.start_after) or 0) end

-- The next moment at which a waiting prediction may have to end, or nil.
function records.soonest(r)
  local deadline, start_by = tonumber(r.deadline), r.begun == '' and tonumber(r.start_by) or nil
  if deadline and start_by then return math.min(deadline, start_by) end
  return deadline or start_by
end

-- An event's number is its place in the list, from 1. A script that appends also raises `seq` in the record.
function records.entry(kind, now, text) return kind .. ' ' .. now .. ' ' .. text end
function records.append(id, entries)
  for first = 1, #entries, 1000 do -- a call takes only so many arguments
    redis.call('RPUSH', keys.events(id), unpack(entries, first, math.min(#entries, first + 999)))
  end
end

-- Return what pcall caught as an error reply.
function records.as_reply(fault) return { err = type(fault) == 'table' and fault.err or tostring(fault) } end
