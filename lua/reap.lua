#!lua flags=allow-oom
-- reap: recover claims whose lease has expired, each as a lost attempt. A lease that was written before the clock went
-- back ends too late: it also counts as expired once its director was silent for a lease.
--
--   KEYS[1]  lease     zset  {p}:q:<queue>:lease
--   ARGV[1]  limit    most claims recovered in this call
--   ARGV[2]  jitter   0..1, drawn by the caller: scripts must not be random
--   ARGV[3]  lease_ms of the directors: the clock has not stepped for this long
--   Returns  id, new state, …   in requeue's words, 'gone' if there was no claim any more, or 'fault':
--            a bad record or key; it is tried again with the next call, and the others are not touched
--
-- uses keys:     QUEUE, clock, queue
-- uses records:  TERMINAL, read
-- uses requeue:  give_back, spread
-- uses ledger:   write

local lease, directors = KEYS[1], keys.queue(keys.QUEUE, 'directors')
local limit, jitter, lease_ms, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), keys.clock(ARGV[4])

local reaped = {}
local function take_back(id, r)
  local k = #reaped / 2 + 1
  reaped[#reaped + 1] = id
  if not r or records.TERMINAL[r.status] or r.token == '' then
    redis.call('ZREM', lease, id)
    reaped[#reaped + 1] = 'gone'
  else
    local how = { spent = true, lost = true, jitter = requeue.spread(jitter, k) }
    local is_done, became = pcall(requeue.give_back, id, r, how, now)
    reaped[#reaped + 1] = is_done and became or 'fault'
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', lease, '-inf', now, 'LIMIT', 0, limit)) do take_back(id, records.read(id)) end

-- The last heartbeat of a live director is in the past by now. `now` was read a moment ago, in a Cluster from the slowest
-- clock: if this server's clock is ahead, its own entries are not late.
local too_late = math.max(now, keys.clock('')) + lease_ms
if redis.call('ZCOUNT', directors, '(' .. too_late, '+inf') > 0 then
  for _, id in ipairs(redis.call('ZRANGE', lease, '+inf', '(' .. too_late, 'BYSCORE', 'REV', 'LIMIT', 0, limit - #reaped / 2)) do
    local r = records.read(id)
    local heartbeat = r and tonumber(redis.call('ZSCORE', directors, r.holder) or 0)
    if not heartbeat or heartbeat > too_late then take_back(id, r) end
  end
end
ledger.write()
return reaped
