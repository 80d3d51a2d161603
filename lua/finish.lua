#!lua flags=allow-oom
-- finish: write terminal records and remove their entries, each only if its claim still holds. For many items of one queue
-- at once: what they share is read once and written once.
-- Commands of a prediction: 23 alone, 11.9 in a batch of 16. Measured with a free slot, without limits, key and webhook.
--
--   of each item, in the form of lib/batch:
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  prediction_id
--   ARGV[2]  token          fencing token handed out by claim
--   ARGV[3]  status         succeeded, failed, canceled or aborted
--   ARGV[4]  error          for people, '' for none
--   ARGV[5]  code           for machines, '' for none
--   ARGV[6]  output         JSON, '' for none
--   ARGV[7]  logs
--   ARGV[8]  metrics        JSON, '' for none
--   ARGV[9]  ran_ms         how long ago the run began, '' if it never did
--   ARGV[10] grace_ms       time for the director to deliver the terminal webhook before a courier does
--   ARGV[11] seq            the last event that the director knows of, as for advance
--   ARGV[12] now_ms         '' for the server's clock
--   ARGV[13] over_ms        how long ago the run was over: the time since then used no slot
--   ARGV[14] claimed_ms     how long ago it was claimed, by the director's clock; '' if unknown
--   ARGV[15] ahead_ms       how long it waited for a slot after the claim
--   ARGV[16] used           of lib/ledger: what the run used, '' if none began
--   ARGV[17…] kind, data  events not written yet
--   Returns  for each item
--            'finished'  also if this claim had finished it before
--            'lost'      nothing was written
--
-- uses keys:     clock
-- uses records:  entry, pick, put_right
-- uses estimate: charge, note_service, note_tokens, write_service, write_tokens
-- uses share:    flush, has_any
-- uses breaker:  close, facts_of
-- uses ends:     prepare, write
-- uses spare:    ring
-- uses ledger:   add, look_up, write
-- uses batch:    each

local queue
local ended = {}

-- The fields of a claimed record that its end needs, '' if absent.
local function read_claim(record)
  local r = { token = '', ended = '', seq = '', started = '', claimed = '', queue = '', account = '', lane = '', cost = '', stream = '',
    mid = '', charged = '', cancel = '', deadline = '', start_by = '', data_ttl_ms = '', webhook = '', events = '', metered = '',
    ran_ms = '', waiter = '', secret = '', model = '', api_token = '', budgeted = '', used = '', used_before = '', named_by = '', left = '',
    shown = '', endpoint = '' }
  records.pick(r, record)
  return r
end

local function finish(key, arg, last)
  local id, token, status, ran_ms = ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 9]
  local known, now, over_ms = tonumber(ARGV[arg + 11]), keys.clock(ARGV[arg + 12]), tonumber(ARGV[arg + 13])

  local r = read_claim(KEYS[key + 1])
  if token == '' then return 'lost' end
  if r.ended == token or ended[id] == token then return 'finished' end
  if r.token ~= token then return 'lost' end

  local shown = {}
  for i = arg + 17 + 2 * math.max(0, r.seq - known), last, 2 do shown[#shown + 1] = records.entry(ARGV[i], now, ARGV[i + 1]) end
  r.seq = r.seq + #shown
  r.started, r.claimed = records.put_right(r.started, ran_ms, now), records.put_right(r.claimed, ARGV[arg + 14], now)
  local served_ms, used, facts = 0, ARGV[arg + 16], breaker.facts_of(r.queue)
  if r.started ~= '' or ran_ms ~= '' then -- not `begun`: an earlier attempt proves nothing about this one's server
    served_ms = math.max(0, now - over_ms - r.claimed - ARGV[arg + 15])
    breaker.close(r.queue, now)
    if status == 'succeeded' then estimate.note_service(facts, served_ms, tonumber(r.cost)) end -- a cancel or a refusal says nothing about it
  end
  local row = used ~= '' and ledger.look_up(r, now)
  estimate.note_tokens(facts, used)
  r.used_now = used
  local own = ends.prepare(id, r, status, {
    error = ARGV[arg + 4], code = ARGV[arg + 5], output = ARGV[arg + 6], logs = ARGV[arg + 7], metrics = ARGV[arg + 8],
    ran_ms = ran_ms, grace_ms = ARGV[arg + 10], ended = token, over_ms = over_ms, shown = shown,
    charge = estimate.charge(r, used, served_ms / 1000, facts[14]),
  }, now)
  if row then ledger.add(row, used) end
  queue, ended[id] = r.queue, token
  if share.has_any(queue, 'limits') then share.flush(queue) end -- whether an account may run again changes with each end
  return 'finished', own
end

return batch.each(1, finish, function()
  if not queue then return end
  estimate.write_service(queue)
  estimate.write_tokens(queue, breaker.facts_of(queue))
  share.flush(queue)
  ledger.write()
  spare.ring(queue)
end, ends.write)
