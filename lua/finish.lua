#!lua flags=allow-oom
-- finish: write terminal records and remove their entries, each only if its claim still holds. For many items of one queue
-- at once: what they share is read once and written once.
-- Uses lib/keys lib/log lib/place lib/estimate lib/share lib/breaker lib/settle lib/batch
--
--   of each item, in the form of lib/batch:
--   KEYS[1]  record    hash  {p}:rec:<id>
--   ARGV[1]  id
--   ARGV[2]  token     fencing token handed out by claim
--   ARGV[3]  status    succeeded, failed, canceled or aborted
--   ARGV[4]  error     for people, '' for none
--   ARGV[5]  code      for machines, '' for none
--   ARGV[6]  output    JSON, '' for none
--   ARGV[7]  logs
--   ARGV[8]  metrics   JSON, '' for none
--   ARGV[9]  ran_ms    how long ago the run began, '' if it never did
--   ARGV[10] grace_ms  time for the director to deliver the terminal webhook before a courier does
--   ARGV[11] seq       the last event that the director knows of, as for advance
--   ARGV[12] now_ms    '' for the server's clock
--   ARGV[13] over_ms   how long ago the run was over: the time since then used no slot
--   ARGV[14] claimed_ms  how long ago it was claimed, by the director's clock; '' if unknown
--   ARGV[15…] kind, data  events not written yet
--   Returns  for each item
--            'finished'  also if this claim had finished it before
--            'lost'      nothing was written

local queue
local ended = {}
gathers = #KEYS > 1

local function finish(KEYS, ARGV)
  local id, token, status, ran_ms, known, now = ARGV[1], ARGV[2], ARGV[3], ARGV[9], tonumber(ARGV[11]), clock(ARGV[12])

  local r = read(id)
  if not r or token == '' then return 'lost' end
  if r.ended == token or ended[id] == token then return 'finished' end
  if r.token ~= token then return 'lost' end

  local over_ms, shown = tonumber(ARGV[13]), {}
  for i = 15 + 2 * math.max(0, r.seq - known), #ARGV, 2 do shown[#shown + 1] = entry(ARGV[i], now, ARGV[i + 1]) end
  r.seq = r.seq + #shown
  r.started, r.claimed = put_right(r.started, ran_ms, now), put_right(r.claimed, ARGV[14], now)
  local served_ms = 0
  if r.started ~= '' or ran_ms ~= '' then -- not `begun`: an earlier attempt proves nothing about this one's server
    served_ms = math.max(0, now - over_ms - r.claimed)
    close_breaker(r.queue, now)
    if status == 'succeeded' then note_service(r.queue, served_ms, tonumber(r.cost)) end -- a cancel or a refusal says nothing about it
  end
  local write = settle(id, r, status, {
    error = ARGV[4], code = ARGV[5], output = ARGV[6], logs = ARGV[7], metrics = ARGV[8],
    ran_ms = ran_ms, grace_ms = ARGV[10], ended = token, served_s = served_ms / 1000,
    over_ms = over_ms, shown = shown,
  }, now)
  queue, ended[id] = r.queue, token
  if has_any(queue, 'limits') then write_ends(queue) end -- whether a tenant may run again changes with each end
  return 'finished', write
end

return for_each_item(1, finish, function() if gathers and queue then write_ends(queue) end end)
