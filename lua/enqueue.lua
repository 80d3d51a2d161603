#!lua
-- enqueue: accept predictions of one queue: record, input, first event, indexes and a place in a stream, all or nothing.
-- Not allow-oom: a full server refuses new work and finishes what it has.
-- Uses lib/keys lib/log lib/place lib/estimate lib/share lib/outlook lib/breaker lib/batch
--
--   of each item, in the form of lib/batch:
--   KEYS[1]  record    hash    {p}:rec:<id>
--   KEYS[2]  input     string  {p}:in:<id>
--   KEYS[3]  idem      string  {p}:idem:<account>:<model>:<hash>, or the record's key without one
--   ARGV[1]  id
--   ARGV[2]  input         the caller's bytes
--   ARGV[3]  fingerprint   of the body, '' without an idempotency key
--   ARGV[4]  idem_ttl_ms
--   ARGV[5]  now_ms        '' for the server's clock
--   ARGV[6…] field, value  of the record: account, model, version, queue, lane, shard, cost, url, webhook, …
--                          with a trace, traceparent and tracestate; with a held response, waiter. `lifetime_ms` becomes
--                          `deadline`, `start_by_ms` becomes `start_by`; weight, most_queued and most_running are its
--                          tenant's, '' for no limit, as of revision limits_rev
--   Returns  for each item
--            {'created', created_ms, deadline, outlook}   outlook as in lib/outlook; only created_ms if this id was accepted before
--            {'replayed', id}                   the idempotency key belongs to that prediction
--            {'mismatch'}                       the key was used with another body
--            {'late'}                           only with the field `bound`, see bind.lua: the key went to a later one
--            {'unknown'}                        the queue is not registered
--            {'refused', code, limit, retry_after_ms, eta_ms}   nothing was written; '' if missing; times of a limit in s
--            code: 'breaker_open', 'too_many_queued', 'queue_full', 'no_capacity' or 'cannot_start_in_time'

local queue, arrivals
local looks, live, deadlines, accepted = {}, {}, {}, {}
-- Ids are random: hardly ever is anything there of one of them, and then each is looked at.
local own = {}
for i = 1, #KEYS, 3 do
  own[#own + 1] = KEYS[i]
  own[#own + 1] = events_key(string.match(KEYS[i], '[^:]+$'))
end
local may_be_known = redis.call('EXISTS', unpack(own)) > 0

-- Write what items share, before it is read again.
local function write_so_far()
  write_filed(queue)
  lines_up = {}
end

local function accept(KEYS, ARGV)
  local id, input, fingerprint, idem_ttl_ms, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], clock(ARGV[5])

  local created = accepted[id] or (may_be_known and redis.call('HGET', KEYS[1], 'created'))
  if created then return { 'created', created } end
  if may_be_known then redis.call('LLEN', events_key(id)) end -- fails here and not half way
  local r = setmetatable({}, EMPTY)
  for i = 6, #ARGV, 2 do r[ARGV[i]] = ARGV[i + 1] end
  if fingerprint ~= '' then
    local held = redis.call('GET', KEYS[3])
    if held then
      local known, print = string.match(held, '^(%S+) (%S+)$')
      if redis.call('EXISTS', record_key(known)) == 1 then -- a queue may keep its records for less than the key's day
        if print ~= fingerprint then return { 'mismatch' } end
        return { 'replayed', known }
      end
      if r.bound ~= '' and known > id then return { 'late' } end -- ids sort by time: a later request took the key
    end
  end
  r.token, r.mid, r.claims = '', '', 0

  local tenant = r.account
  queue = r.queue
  if not looks[r.lane] then
    write_so_far()
    looks[r.lane] = look_at(queue, r.lane)
  end
  local m = looks[r.lane]
  m.lane.number = nil
  if m.streams == '' then return { 'unknown' } end

  local function how_many_live() return redis.call('ZCARD', queue_key(queue, 'live')) + #live / 2 end

  -- How often one leaves a full queue, roughly. Clients sleep for this long, so it is bounded.
  local function one_leaves_ms()
    return math.ceil(math.min(60000, math.max(1000, tonumber(m.service_ms) / math.max(1, tonumber(m.slots)))))
  end

  local may_be_tried = m.breaker == 'open' and is_cool(m.open_until, m.cool_ms, now) -- and where nothing waits, only with what comes
  local function nothing_starts()
    local why = stoppage(m, now)
    return why and not (why == 'breaker_open' and may_be_tried)
  end

  if m.breaker ~= '' and m.breaker_mode == 'fail' and not may_be_tried then
    return { 'refused', 'breaker_open', '', math.max(1000, tonumber(m.open_until) - now), '' }
  elseif r.most_queued ~= '' and counted(queue, 'queued', tenant) >= tonumber(r.most_queued) then
    return { 'refused', 'too_many_queued', r.most_queued, one_leaves_ms(), '' }
  elseif m.mode == 'bounded' and how_many_live() - m.claimed >= tonumber(m.max_queued) then
    return { 'refused', 'queue_full', m.max_queued, one_leaves_ms(), '' }
  elseif m.mode == 'reject' and (how_many_live() >= tonumber(m.slots) or nothing_starts()) then
    return { 'refused', 'no_capacity', m.slots, one_leaves_ms(), '' }
  end

  local new_limits = bring_limits(queue, tenant, r.weight ~= '' and r.weight or '1', r.most_running, r.limits_rev ~= '' and r.limits_rev or '0')
  local hope = outlook(nil, r, now, m)
  if r.start_by_ms ~= '' and hope[3] ~= '' and hope[3] > tonumber(r.start_by_ms) then
    brought[tenant] = nil -- the stored ones hold for the next item
    return { 'refused', 'cannot_start_in_time', math.floor(r.start_by_ms / 1000), math.min(3600000, hope[3] - r.start_by_ms), hope[3] }
  end

  -- Listed before anything of it is written: it comes into `live` even after a fault, where the reconciler sees it.
  live[#live + 1], live[#live + 2] = now, id
  if new_limits then
    write_so_far()
    write_limits(queue, tenant, new_limits)
    join_or_part(queue, tenant) -- without a limit no other step would give turns to its other lanes
  end
  arrivals = (arrivals or m.arrivals) + 1
  count_later('meta', 'arrivals', 1)
  r.arrival = arrivals

  local fields = { 'status', 'starting', 'created', now, 'attempt', 0, 'claims', 0, 'seq', 1, 'token', '', 'arrival', r.arrival }
  local function add(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  local lifetime = math.min(tonumber(r.lifetime_ms) or math.huge, tonumber(m.lifetime_ms) or math.huge)
  if lifetime < math.huge then r.deadline = now + lifetime end
  if r.start_by_ms ~= '' then r.start_by = now + r.start_by_ms end
  if r.deadline ~= '' then add('deadline', r.deadline) end
  if r.start_by ~= '' then add('start_by', r.start_by) end
  add('place', hope[1] .. ' ' .. hope[2])
  if hope[3] ~= '' and hope[3] > 0 then
    add('eta50', hope[3])
    add('eta90', hope[4])
  end
  for i = 6, #ARGV, 2 do
    local field = ARGV[i]
    local is_kept = field ~= 'lifetime_ms' and field ~= 'start_by_ms' and field ~= 'weight' and field ~= 'most_queued'
      and field ~= 'most_running' and field ~= 'limits_rev' and field ~= 'bound'
    if is_kept then add(field, ARGV[i + 1]) end
  end

  if fingerprint ~= '' then add('idem', string.match(KEYS[3], '[^:]+$')) end -- for a move to another server
  for _, part in ipairs(file_later(id, r, m.lane)) do fields[#fields + 1] = part end
  for _, other in pairs(looks) do
    other['ready:' .. r.lane], other['backlogged:' .. r.lane] = m.lane.ready, m.lane.backlogged
  end
  if lines_up[r.lane] and not lines_up[r.lane].times[tenant] then lines_up[r.lane] = nil end
  count_later('queued', tenant, 1)
  count_later('tally', 'accepted:' .. r.lane, 1)
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('SET', KEYS[2], input)
  if soonest(r) then deadlines[#deadlines + 1], deadlines[#deadlines + 2] = soonest(r), id end
  redis.call('RPUSH', events_key(id), 'created ' .. now .. ' ')
  if fingerprint ~= '' then redis.call('SET', KEYS[3], id .. ' ' .. fingerprint, 'PX', idem_ttl_ms) end
  log('accepted', id, queue, tenant, now, r.lane)
  accepted[id] = now
  return { 'created', now, r.deadline, hope }
end

return for_each_item(3, accept, function()
  if #live == 0 then return end
  redis.call('ZADD', queue_key(queue, 'live'), unpack(live))
  if #deadlines > 0 then redis.call('ZADD', queue_key(queue, 'deadline'), unpack(deadlines)) end
  write_filed(queue)
end)
