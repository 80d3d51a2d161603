#!lua
-- enqueue: accept predictions of one queue: record, input, first event, indexes and a place in a stream, all or nothing.
-- Not allow-oom: a full server refuses new work and finishes what it has.
-- Commands of a prediction: 15 alone, 5.8 in a batch of 16. Measured with a free slot, without limits, key and webhook.
--
--   of each item, in the form of lib/batch:
--   KEYS[1]  record      hash    {p}:rec:<id>
--   KEYS[2]  input_data  string  {p}:in:<id>
--   KEYS[3]  idem        string  {p}:idem:<account>:<model>:<hash>, or the record's key without one
--   ARGV[1]  id
--   ARGV[2]  input               the caller's bytes
--   ARGV[3]  fingerprint         of the body, '' without an idempotency key
--   ARGV[4]  idempotency_ttl_ms
--   ARGV[5]  now_ms              '' for the server's clock
--   ARGV[6]  weight              this, most_running and most_queued are its account's, as of revision limits_rev
--   ARGV[7]  most_running        '' for no limit
--   ARGV[8]  most_queued         '' for no limit
--   ARGV[9]  limits_rev
--   ARGV[10] lifetime_ms         becomes `deadline`, '' for the queue's
--   ARGV[11] start_by_ms         becomes `start_by`, '' for none
--   ARGV[12] bound               '1' if bind.lua bound the idempotency key to it, else ''
--   ARGV[13…] field, value of the record: account, queue, lane, shard, cost, tokens, start_after; then model, version, …
--                          with a trace, traceparent and tracestate; with a held response, waiter
--   Returns  for each item
--            {'created', created_ms, deadline, outlook}   outlook as in lib/outlook; only created_ms if this id was accepted before
--            {'replayed', id}                   the idempotency key belongs to that prediction
--            {'mismatch'}                       the key was used with another body
--            {'late'}                           only with the field `bound`, see bind.lua: the key went to a later one
--            {'unknown'}                        the queue is not registered
--            {'refused', code, limit, retry_after_ms, eta_ms}   nothing was written; '' if missing; times of a limit in s
--            code: 'breaker_open', 'too_many_queued', 'queue_full', 'no_capacity' or 'cannot_start_in_time'
--
-- uses keys:     TAG, clock, events, queue, record
-- uses records:  soonest
-- uses log:      write
-- uses pending:  count, counted, write_counts
-- uses share:    ALL_LANES, LANES, bring_limits, brought, closed_until, file, may_run, update_turns, write_joining, write_limits
-- uses outlook:  closed_in, lines_up, look_at, of, place_in, stoppage, waits_in
-- uses breaker:  is_cool
-- uses batch:    each

local queue, arrivals
local looks, live, deadlines, delayed, accepted = {}, {}, {}, {}, {}
-- Ids are random: hardly ever is anything there of one of them, and then each is looked at.
local own = {}
local id_at = #keys.TAG + #':rec:' + 1 -- a pattern would be tried at each byte of the key
for i = 1, #KEYS, 3 do
  own[#own + 1] = KEYS[i]
  own[#own + 1] = keys.events(string.sub(KEYS[i], id_at))
end
local may_be_known = redis.call('EXISTS', unpack(own)) > 0

-- Write what items share, before it is read again. Nothing ends here, so share.flush would have no more to write.
local function write_so_far()
  share.write_joining()
  pending.write_counts(queue)
  outlook.lines_up = {}
end

local function how_many_live() return redis.call('ZCARD', keys.queue(queue, 'live')) + #live / 2 end

local function how_many_planned(now)
  local sum = redis.call('ZCOUNT', keys.queue(queue, 'live'), '(' .. now, '+inf')
  for i = 1, #live, 2 do sum = sum + (live[i] > now and 1 or 0) end
  return sum
end

-- Return how many wait of this kind: 'planned', 'closed' (its account is out of its hours), 'idle', or 'now'. One kind takes
-- no room of another: what cannot start now would shut the queue for others until it can.
local function how_many_of(kind, m, now)
  if kind == 'planned' then return how_many_planned(now) end
  if kind == 'closed' then return outlook.closed_in(queue, share.ALL_LANES) end
  local idle = outlook.waits_in(m, 'idle')
  if kind == 'idle' then return idle end
  return how_many_live() - m.claimed - how_many_planned(now) - idle - outlook.closed_in(queue, share.LANES)
end

local function kind_of(r, now)
  if (tonumber(r.start_after) or now) > now then return 'planned' end
  if share.closed_until(queue, r.account) then return 'closed' end
  return r.lane == 'idle' and 'idle' or 'now'
end

-- True if not one more of it can start at once.
local function must_wait(m, r, now)
  local kind = kind_of(r, now)
  if kind == 'planned' or not share.may_run(queue, r.account) then return true end
  if how_many_live() < tonumber(m.slots) then return false end
  local before = how_many_of('now', m, now) + (kind == 'idle' and how_many_of(kind, m, now) or 0)
  return m.claimed + before >= tonumber(m.slots)
end

local function is_full(m, r, now)
  local most = tonumber(m.max_queued)
  return how_many_live() - m.claimed >= most and how_many_of(kind_of(r, now), m, now) >= most
end

-- Return roughly the milliseconds until one leaves a full queue. Clients sleep for this long, so it is bounded.
local function one_leaves_ms(m)
  return math.ceil(math.min(60000, math.max(1000, tonumber(m.service_ms) / math.max(1, tonumber(m.slots)))))
end

-- Return the refusal of one more prediction as a reply, or nil.
local function refusal(m, r, most_queued, now)
  local may_be_tried = m.breaker == 'open' and breaker.is_cool(m.open_until, m.cool_ms, now) -- and where nothing waits, only with what comes
  if m.breaker ~= '' and m.breaker_mode == 'fail' and not may_be_tried then
    return { 'refused', 'breaker_open', '', math.max(1000, tonumber(m.open_until) - now), '' }
  elseif most_queued ~= '' and pending.counted(queue, 'queued', r.account) >= tonumber(most_queued) then
    return { 'refused', 'too_many_queued', most_queued, one_leaves_ms(m), '' }
  elseif m.mode == 'bounded' and is_full(m, r, now) then
    return { 'refused', 'queue_full', m.max_queued, one_leaves_ms(m), '' }
  elseif m.mode == 'reject' then
    local stopped = outlook.stoppage(queue, m, now)
    if must_wait(m, r, now) or (stopped and not (stopped == 'breaker_open' and may_be_tried)) then
      return { 'refused', 'no_capacity', m.slots, one_leaves_ms(m), '' }
    end
  end
end

-- Return the answer to a request whose idempotency key is held, or nil.
local function answer_of(held, id, fingerprint, is_bound)
  local known, print = string.match(held, '^(%S+) (%S+)$')
  if redis.call('EXISTS', keys.record(known)) == 1 then -- a queue may keep its records for less than the key's day
    return print == fingerprint and { 'replayed', known } or { 'mismatch' }
  end
  if is_bound and known > id then return { 'late' } end -- ids sort by time: a later request took the key
end

local function accept(key, arg, last)
  local record, id, fingerprint, now = KEYS[key + 1], ARGV[arg + 1], ARGV[arg + 3], keys.clock(ARGV[arg + 5])
  local start_by_ms = ARGV[arg + 11]

  local created = accepted[id] or (may_be_known and redis.call('HGET', record, 'created'))
  if created then return { 'created', created } end
  if may_be_known then redis.call('LLEN', keys.events(id)) end -- fails here and not half way
  local held = fingerprint ~= '' and redis.call('GET', KEYS[key + 3])
  local answer = held and answer_of(held, id, fingerprint, ARGV[arg + 12] ~= '')
  if answer then return answer end

  local r = { account = '', queue = '', lane = '', shard = '', cost = '', tokens = '', arrival = '', token = '', mid = '', begun = '',
    deadline = '', start_by = '', start_after = '' }
  for i = arg + 13, arg + 25, 2 do r[ARGV[i]] = ARGV[i + 1] end
  local account, lane = r.account, r.lane
  queue = r.queue
  if not looks[lane] then
    write_so_far()
    looks[lane] = outlook.look_at(queue, lane)
    for _, other in pairs(looks) do other.ready, other.backlogged = looks[lane].ready, looks[lane].backlogged end
  end
  local m = looks[lane]
  m.lane.number = nil
  if m.streams == '' then return { 'unknown' } end
  local new_limits = share.bring_limits(queue, account, ARGV[arg + 6], ARGV[arg + 7], ARGV[arg + 9])
  local refused = refusal(m, r, ARGV[arg + 8], now)
  if refused then
    share.brought[account] = nil -- the stored ones hold for the next item
    return refused
  end
  local hope, runs = outlook.of(nil, r, now, m)
  if start_by_ms ~= '' and hope[3] ~= '' and hope[3] > tonumber(start_by_ms) then
    share.brought[account] = nil
    return { 'refused', 'cannot_start_in_time', math.floor(start_by_ms / 1000), math.min(3600000, hope[3] - start_by_ms), hope[3] }
  end

  -- Listed before anything of it is written: it comes into `live` even after a fault, where the reconciler sees it. What is
  -- planned is as old as its wait after that time.
  local due = tonumber(r.start_after) or now
  local is_planned = due > now
  live[#live + 1], live[#live + 2] = math.max(now, due), id
  if new_limits then
    write_so_far()
    share.write_limits(queue, account, new_limits)
    share.update_turns(queue, account) -- without a limit no other step would give turns to its other lanes
  end
  arrivals = (arrivals or m.arrivals) + 1
  pending.count('meta', 'arrivals', 1)
  r.arrival = arrivals
  -- the queue's lifetime begins when it may start: else one that is planned for later would never run
  local lifetime = math.min(tonumber(ARGV[arg + 10]) or math.huge, (tonumber(m.lifetime_ms) or math.huge) + math.max(0, due - now))
  if lifetime < math.huge then r.deadline = now + lifetime end
  if start_by_ms ~= '' then r.start_by = now + start_by_ms end
  local stream, mid = '', ''
  if is_planned then
    delayed[#delayed + 1], delayed[#delayed + 2] = due, id
  else
    stream, mid = share.file(id, r, m.lane)
  end
  m.ready[lane], m.backlogged[lane] = m.lane.ready, m.lane.backlogged
  if outlook.lines_up[lane] and not outlook.place_in(outlook.lines_up[lane], account) then outlook.lines_up[lane] = nil end
  pending.count('queued', account, 1)
  if not is_planned then pending.count('tally', 'accepted:' .. lane, 1) end -- else it counts when it is due: see promote

  local at = string.format('%d', now)
  local fields = { 'status', 'starting', 'created', at, 'attempt', '0', 'claims', '0', 'seq', '1', 'arrival', arrivals,
    'place', string.format('%d %d', hope[1], hope[2]), unpack(ARGV, arg + 13, last) }
  local function add(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  if mid ~= '' then
    add('stream', stream)
    add('mid', mid)
  end
  if r.deadline ~= '' then add('deadline', r.deadline) end
  if r.start_by ~= '' then add('start_by', r.start_by) end
  if hope[3] ~= '' and hope[3] > 0 then
    add('eta50', hope[3])
    add('eta90', hope[4])
    if runs then add('runs', runs) end
  end
  if fingerprint ~= '' then add('idem', string.match(KEYS[key + 3], '[^:]+$')) end -- for a move to another server
  redis.call('HSET', record, unpack(fields))
  redis.call('SET', KEYS[key + 2], ARGV[arg + 2])
  if records.soonest(r) then deadlines[#deadlines + 1], deadlines[#deadlines + 2] = records.soonest(r), id end
  redis.call('RPUSH', keys.events(id), 'created ' .. at .. ' ')
  if fingerprint ~= '' then redis.call('SET', KEYS[key + 3], id .. ' ' .. fingerprint, 'PX', ARGV[arg + 4]) end
  log.write('accepted', id, queue, account, at, lane)
  accepted[id] = now
  return { 'created', now, r.deadline, hope }
end

return batch.each(3, accept, function()
  if #live == 0 then return end
  redis.call('ZADD', keys.queue(queue, 'live'), unpack(live))
  if #delayed > 0 then redis.call('ZADD', keys.queue(queue, 'delayed'), unpack(delayed)) end
  if #deadlines > 0 then redis.call('ZADD', keys.queue(queue, 'deadline'), unpack(deadlines)) end
  write_so_far()
end)
