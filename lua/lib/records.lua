-- lib/records: read a prediction's record, and judge and extend what it says.
--
-- uses keys:     events, record

-- The record as a table, or nil. Absent fields read as ''.
records.EMPTY = { __index = function() return '' end }
function records.parse(flat)
  local r = {}
  for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
  return setmetatable(r, records.EMPTY)
end

function records.read(id)
  local flat = redis.call('HGETALL', keys.record(id))
  return #flat > 0 and records.parse(flat) or nil
end

-- Read the fields that r has, each '' at first, and leave out all others. Returns the record as a flat list, empty if there is
-- none. Not with HMGET: for each field Redis searches the record from its start.
function records.pick(r, record)
  local flat = redis.call('HGETALL', record)
  for i = 1, #flat, 2 do
    if r[flat[i]] then r[flat[i]] = flat[i + 1] end
  end
  return flat
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
