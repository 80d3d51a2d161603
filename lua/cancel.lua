#!lua flags=allow-oom
-- cancel: end a prediction that waits, or ask the director of a running one to stop it.
--
--   KEYS[1]  record   hash  {p}:rec:<id>
--   ARGV[1]  account  whose it must be
--   ARGV[2]  kind     that it must be of, '' for a prediction
--   Returns  'canceled'  it waited, and has ended
--            'asked'     it runs; its director was notified, and is again at each heartbeat. Or it is leaving for
--                        another server, and is canceled there
--            'over'      it had ended before
--            'moved'     it is at another server
--            'unknown'   no such prediction of this account
--
-- uses keys:     ID, clock, kick
-- uses records:  TERMINAL, read
-- uses log:      write
-- uses ends:     end_now

local id, account, kind, now = keys.ID, ARGV[1], ARGV[2], keys.clock(ARGV[3])

local r = records.read(id)
if not r or r.account ~= account or r.kind ~= kind then return 'unknown' end
if records.TERMINAL[r.status] then return 'over' end
if r.moved ~= '' then return 'moved' end
if r.leaving == '' and r.token == '' then
  ends.end_now(id, r, 'canceled', {}, now)
  return 'canceled'
end
if r.cancel ~= 'user' then log.write('asked', id, r.queue, account, now, r.holder) end
redis.call('HSET', KEYS[1], 'cancel', 'user')
redis.call('PUBLISH', keys.kick(r.holder), id)
return 'asked'
