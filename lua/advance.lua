#!lua flags=allow-oom
-- advance: write a run's progress since the last call: that it began, and its events in order.
--
--   KEYS[1]  record    hash  {p}:rec:<id>
--   ARGV[1]  token     fencing token handed out by claim
--   ARGV[2]  seq       the last event that the director knows of. Later ones were written by a call whose reply was
--                      lost; they are the first events of this call
--   ARGV[3]  ran_ms    how long ago the run began, '' while it has not
--   ARGV[4]  remote    what the server calls the run, '' if that is not new; kept until the run is given back as spent
--   ARGV[5]  used      tokens that the run used so far: `<input> <cached> <output>`, '' if that is not new
--   ARGV[6]  now_ms    '' for the server's clock
--   ARGV[7…] kind, data
--   With `once_shown` in the record, an event of kind output also sets its field `shown`: no other run begins from then on.
--   One of kind role, a chunk that says only who speaks, does not.
--   Returns  {'held' | 'user' | 'deadline', seq, started_ms}   as extend's answers
--            {'lost'}                                          nothing was written
--
-- uses keys:     ID, channel, clock
-- uses records:  append, entry

local SENT_BYTES = 2048 -- of events in a message, which each process with a reader gets: several tokens of a call

local id, token, last_known, ran_ms, now = keys.ID, ARGV[1], tonumber(ARGV[2]), ARGV[3], keys.clock(ARGV[6])

local r = redis.call('HMGET', KEYS[1], 'token', 'seq', 'status', 'cancel', 'started', 'once_shown')
if token == '' or r[1] ~= token then return { 'lost' } end
local word = (r[4] and r[4] ~= '') and r[4] or 'held'
local seq = tonumber(r[2])
local started = r[5]
if ran_ms ~= '' and r[3] == 'starting' then
  started = now - ran_ms
  redis.call('HSET', KEYS[1], 'status', 'processing', 'started', started, 'begun', '1')
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'remote', ARGV[4], 'named_by', token) end
local shown, has_output = {}, false
for i = 7 + 2 * math.max(0, seq - last_known), #ARGV, 2 do
  shown[#shown + 1] = records.entry(ARGV[i], now, ARGV[i + 1])
  has_output = has_output or ARGV[i] == 'output'
end
records.append(id, shown)
seq = seq + #shown
if has_output and r[6] and r[6] ~= '' then redis.call('HSET', KEYS[1], 'shown', '1') end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'seq', seq, 'used', token .. ' ' .. ARGV[5]) -- of this claim: another one's says nothing
else
  redis.call('HSET', KEYS[1], 'seq', seq)
end
-- Small events go along, so that their readers need not ask for them: of 2 scripts a token 1 is left. Several have no space, so
-- that release 0.3.0 takes them for a number alone, and asks. No event has the two bytes: JSON may not.
local text = table.concat(shown, '\0')
local message = tostring(seq)
if #shown == 1 and #text <= SENT_BYTES then
  message = message .. ' ' .. text
elseif #shown > 1 and #text <= SENT_BYTES then
  message = message .. '\0' .. string.gsub(text, ' ', '\1')
end
redis.call('PUBLISH', keys.channel(id), message)
return { word, seq, started }
