#!lua flags=allow-oom
-- release: give a claim back: unspent (server full, drain) or as a spent attempt (the server died under it).
-- Uses lib/keys lib/log lib/place lib/estimate lib/share lib/breaker lib/settle lib/requeue
--
--   KEYS[1]  record    hash  {p}:rec:<id>
--   ARGV[1]  id
--   ARGV[2]  token     fencing token handed out by claim
--   ARGV[3]  spent     '1' if it was an attempt
--   ARGV[4]  delay_ms  0 for at once
--   ARGV[5]  error     its error if it may not run again: no attempt is left, or `on_lost` is 'fail' and it began
--   ARGV[6]  code      the same for machines
--   ARGV[7]  began     '1' if the run began or may have; '0' if it did not; '' lets the record decide
--   ARGV[8]  now_ms    '' for the server's clock
--   ARGV[9]  claimed_ms  how long ago it was claimed, by the director's clock; '' if unknown
--   Returns  'waiting', 'delayed', 'dead', 'canceled' or 'late': its new state
--            'lost'     nothing was written

local id, token, spent, delay_ms, now = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4]), clock(ARGV[8])

local r = read(id)
if not r or token == '' or r.token ~= token then return 'lost' end
r.claimed = put_right(r.claimed, ARGV[9], now)
local began = nil
if ARGV[7] ~= '' then began = ARGV[7] == '1' end
return requeue(id, r, { spent = spent, began = began, delay_ms = delay_ms, error = ARGV[5], code = ARGV[6] }, now)
