#!lua flags=allow-oom
-- redeliver: owe the terminal webhook again, on request. The schedule restarts if it was no longer owed. Else the attempt is
-- one that was brought forward, as by forward. A courier that is about to deliver it keeps its attempt: no other one begins
-- beside it.
--
--   KEYS[1]  record   hash  {p}:rec:<id>
--   ARGV[1]  account  whose it must be, '' for any
--   Returns  'owed'      it is due, or being delivered
--            'unknown'   no such prediction of this account
--            'running'   it has not ended
--            'unwanted'  its caller wanted no webhook of its end
--            'removed'   its data is gone, so the webhook would be wrong

local id, account, now = ID, ARGV[1], clock(ARGV[2])

local r = read(id)
if not r or (account ~= '' and r.account ~= account) then return 'unknown' end
if not TERMINAL[r.status] then return 'running' end
if not wants_end(r) then return 'unwanted' end
if redis.call('EXISTS', input_key(id)) == 0 then return 'removed' end

local due = redis.call('ZSCORE', owed_key(), id)
if not due then
  redis.call('HSET', KEYS[1], 'tellings_before', r.tellings, 'owed_since', now)
  for _, key in ipairs({ KEYS[1], input_key(id), output_key(id), events_key(id) }) do
    redis.call('PEXPIRE', key, OWED_MS, 'GT')
  end
elseif tonumber(due) ~= tonumber(r.next_telling) then -- taken by a courier, or its director's own, whose time ends by itself
  return 'owed'
elseif tonumber(due) <= now then
  return 'owed'
elseif r.forwarded ~= '0' then -- '0': put off, so it is late as it is
  redis.call('HSET', KEYS[1], 'forwarded', r.next_telling)
end
if not due then redis.call('HSET', KEYS[1], 'next_telling', now) end
redis.call('ZADD', owed_key(), now, id)
return 'owed'
