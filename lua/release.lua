#!lua flags=allow-oom
-- release: give a claim back: unspent (server full, drain) or as a spent attempt (the server died under it).
--
--   KEYS[1]  record  hash  {p}:rec:<id>
--   ARGV[1]  token        fencing token handed out by claim
--   ARGV[2]  spent        '1' if it was an attempt
--   ARGV[3]  delay_ms     0 for at once
--   ARGV[4]  error        its error if it may not run again: no attempt is left, `on_lost` is 'fail' and it began, or it has `shown`
--   ARGV[5]  code         the same for machines
--   ARGV[6]  began        '1' if the run began or may have; '0' if it did not; '' lets the record decide
--   ARGV[7]  claimed_ms   how long ago it was claimed, by the director's clock; '' if unknown
--   ARGV[8]  most_claims  most claims that one prediction may ever have: after these it ends with this error
--   ARGV[9]  used         of lib/ledger: what the run used, '' if none began
--   Returns  'waiting', 'delayed', 'dead', 'canceled' or 'late': its new state
--            'lost'     nothing was written
--
-- uses keys:     ID, clock
-- uses records:  put_right, read
-- uses requeue:  give_back
-- uses ledger:   write

local id, token, spent, delay_ms, now = keys.ID, ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), keys.clock(ARGV[10])

local r = records.read(id)
if not r or token == '' or r.token ~= token then return 'lost' end
r.claimed = records.put_right(r.claimed, ARGV[7], now)
local began = nil
if ARGV[6] ~= '' then began = ARGV[6] == '1' end
local how = { spent = spent, began = began, delay_ms = delay_ms, error = ARGV[4], code = ARGV[5], used = ARGV[9] }
how.used_up = tonumber(r.claims) >= tonumber(ARGV[8])
local became = requeue.give_back(id, r, how, now)
ledger.write()
return became
