#!lua flags=allow-oom
-- redeliver: owe the terminal webhook again, on request. The schedule restarts if it was no longer owed. Else the attempt is
-- one that was brought forward, as by forward. A courier that is about to deliver it keeps its attempt: no other one begins
-- beside it.
--
--   KEYS[1]  record     hash  {p}:rec:<id>
--   ARGV[1]  account    whose it must be, '' for any
--   ARGV[2]  only_owed  '1': a webhook that is no longer owed stays so: it was delivered meanwhile, or is given up
--   Returns  'owed'      it is due, or being delivered
--            'unknown'   no such prediction of this account
--            'running'   it has not ended
--            'unwanted'  its caller wanted no webhook of its end
--            'settled'   it is no longer owed, and ARGV[2] is '1'
--            'removed'   its data is gone, so the webhook would be wrong
--
-- uses keys:     ID, clock, events, input, output, owed
-- uses records:  OWED_MS, TERMINAL, read, wants_end

local id, account, only_owed, now = keys.ID, ARGV[1], ARGV[2] == '1', keys.clock(ARGV[3])

local r = records.read(id)
if not r or (account ~= '' and r.account ~= account) then return 'unknown' end
if not records.TERMINAL[r.status] then return 'running' end
if not records.wants_end(r) then return 'unwanted' end

local due = redis.call('ZSCORE', keys.owed(), id)
if only_owed and not due then return 'settled' end
if redis.call('EXISTS', keys.input(id)) == 0 then return 'removed' end

if not due then
  redis.call('HSET', KEYS[1], 'tellings_before', r.tellings, 'owed_since', now)
  for _, key in ipairs({ KEYS[1], keys.input(id), keys.output(id), keys.events(id) }) do
    redis.call('PEXPIRE', key, records.OWED_MS, 'GT')
  end
elseif tonumber(due) ~= tonumber(r.next_telling) then -- taken by a courier, or its director's own, whose time ends by itself
  return 'owed'
elseif tonumber(due) <= now then
  return 'owed'
elseif r.forwarded ~= '0' then -- '0': put off, so it is late as it is
  redis.call('HSET', KEYS[1], 'forwarded', r.next_telling)
end
if not due then redis.call('HSET', KEYS[1], 'next_telling', now) end
redis.call('ZADD', keys.owed(), now, id)
return 'owed'
