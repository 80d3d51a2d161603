-- lib/pending: what a call has decided and not written yet. Many predictions share one write, so it is gathered here.
-- `share.flush` writes it: at the script's end, and before any step that reads it.
--
-- uses keys:     GROUP, queue
-- uses ready:    known_waiting

-- Removals from streams and indexes of the queue are gathered, and written at the script's end.
pending.removals, pending.gone, pending.gone_from = {}, {}, {}
function pending.add_to(lists, key, value)
  local list = lists[key]
  if list then
    list[#list + 1] = value
  else
    lists[key] = { value }
  end
end

-- XACK alone would leave an entry for ever; XDEL alone its pending id.
function pending.write_removals(queue)
  for stream, mids in pairs(pending.removals) do
    redis.call('XACK', stream, keys.GROUP, unpack(mids))
    redis.call('XDEL', stream, unpack(mids))
    ready.known_waiting[stream], pending.removals[stream] = nil, nil
  end
  if #pending.gone == 0 then return end
  for index in pairs(pending.gone_from) do redis.call('ZREM', keys.queue(queue, index), unpack(pending.gone)) end
  pending.gone, pending.gone_from = {}, {}
end

-- Counts for many predictions, and new values of the queue, are written once: at the script's end, and before any step that
-- reads them.
pending.counts = {}
pending.fields = {}
function pending.set(field, value)
  pending.fields[#pending.fields + 1] = field
  pending.fields[#pending.fields + 1] = value
end
function pending.count(what, field, by)
  local sums = pending.counts[what]
  if not sums then
    sums = {}
    pending.counts[what] = sums
  end
  sums[field] = (sums[field] or 0) + by
end

-- A counter of an account is removed at zero, so that a queue remembers only accounts with work.
pending.OF_ACCOUNTS = { queued = true, running = true }
function pending.write_counts(queue)
  for what, sums in pairs(pending.counts) do
    local key = keys.queue(queue, what)
    for field, by in pairs(sums) do
      local sum = (by ~= 0 or what == 'tally') and redis.call('HINCRBY', key, field, by)
      if sum and sum <= 0 and pending.OF_ACCOUNTS[what] then redis.call('HDEL', key, field) end
      sums[field] = nil
    end
  end
  if #pending.fields == 0 then return end
  redis.call('HSET', keys.queue(queue, 'meta'), unpack(pending.fields))
  pending.fields = {}
end

function pending.counted(queue, what, account)
  local later = pending.counts[what] and pending.counts[what][account] or 0
  return tonumber(redis.call('HGET', keys.queue(queue, what), account) or 0) + later
end

-- Count an entry that came into the streams, or left them because it was handed out or ended.
function pending.count_ready(r, by) pending.count('meta', 'ready:' .. r.lane, by) end

-- ── virtual time ─────────────────────────────────────────────────────────────────────────────────────────────────

pending.clocks = {} -- of lanes, see share.write_clocks

-- Replace the charge from entering the streams by the real time: {seconds, charge}, of lanes and accounts.
pending.corrections = {}
function pending.correct_charge(r, seconds)
  if r.charged == '' then return end
  pending.corrections[r.lane] = pending.corrections[r.lane] or {}
  pending.add_to(pending.corrections[r.lane], r.account, { seconds, tonumber(r.charged) })
end

-- ── the backlog ──────────────────────────────────────────────────────────────────────────────────────────────────

-- Ids that join backlogs are written once for each backlog.
pending.joining = {}
function pending.add_to_backlog(backlog, id, r)
  local line = pending.joining[backlog] or { lane = r.lane }
  pending.joining[backlog] = line
  line[#line + 1] = tonumber(r.arrival)
  line[#line + 1] = id
end

pending.ended_of = {} -- accounts
