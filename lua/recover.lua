#!lua flags=allow-oom
-- recover: find claims without a lease among the pending entries of one stream: the slow cross-check of reap.
--
--   KEYS[1]  stream   stream  {p}:q:<queue>:<lane>:s<n>
--   ARGV[1]  queue
--   ARGV[2]  cursor   from the last call, '0-0' at first; always starting at '0-0' would show the same few entries
--   ARGV[3]  count    entries claimed for a look; the server scans ten times as many
--   ARGV[4]  idle_ms  only entries that were not extended for this long
--   ARGV[5]  jitter   0..1, as reap
--   Returns  {cursor, id, new state, …}   cursor '0-0' once the end was reached; states as of reap
--
-- uses keys:     GROUP, clock, queue, record
-- uses records:  TERMINAL, read
-- uses pending:  correct_charge
-- uses share:    file_now, take_away
-- uses requeue:  give_back, spread
-- uses ledger:   write

local stream, queue, cursor, count, idle_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jitter, now = tonumber(ARGV[5]), keys.clock(ARGV[6])

if redis.call('EXISTS', stream) == 0 then return { '0-0' } end
local reply = redis.pcall('XAUTOCLAIM', stream, keys.GROUP, 'keeper', idle_ms, cursor, 'COUNT', count, 'JUSTID')
if reply.err then return { '0-0' } end -- no group: nothing is pending

local recovered = { reply[1] }
for k, mid in ipairs(reply[2]) do
  local entry = redis.call('XRANGE', stream, mid, mid)[1]
  local id = entry and entry[2][2]
  local r = id and records.read(id)
  local became
  if not r or records.TERMINAL[r.status] or r.mid ~= mid then
    redis.call('XACK', stream, keys.GROUP, mid)
    redis.call('XDEL', stream, mid)
    became = 'gone'
  elseif r.token == '' then -- it waits, and no claim would get it
    share.take_away(id, r)
    pending.correct_charge(r, 0)
    redis.call('HSET', keys.record(id), unpack(share.file_now(id, r)))
    became = 'waiting'
  elseif tonumber(redis.call('ZSCORE', keys.queue(queue, 'lease'), id) or 0) <= now then
    local how = { spent = true, lost = true, jitter = requeue.spread(jitter, k) }
    local is_done, word = pcall(requeue.give_back, id, r, how, now)
    became = is_done and word or 'fault'
  end
  if became then
    recovered[#recovered + 1] = id or ''
    recovered[#recovered + 1] = became
  end
end
ledger.write()
return recovered
