#!lua flags=allow-oom
-- depart: take waiting and delayed predictions out of their queue, to arrive at another Redis server. They can no longer
-- be claimed, keep all their data, and a cancel is noted and passed on. See vacate and stay.
--
--   KEYS[1]  live     zset  {p}:q:<queue>:live
--   ARGV[1]  site     of the server that they leave for
--   ARGV[2]  now_ms   '' for the server's clock
--   ARGV[3…] id, account  of each; the account is known at that server
--   Returns  per id  'leaving' (also when it was before, for there), 'elsewhere' (it leaves for another server), 'claimed',
--                    'held' (its account is paused or suspended here) or 'gone'
--
-- uses keys:     QUEUE, clock, queue, record
-- uses records:  TERMINAL, read
-- uses share:    is_held
-- uses requeue:  take_out

local queue, site, now = keys.QUEUE, ARGV[1], keys.clock(ARGV[2])

local answers = {}
for i = 3, #ARGV, 2 do
  local id, account = ARGV[i], ARGV[i + 1]
  local r = records.read(id)
  local answer = 'gone'
  if r and not records.TERMINAL[r.status] and r.queue == queue and r.account == account and r.moved == '' then
    if r.leaving ~= '' then
      answer = r.leaving == site and 'leaving' or 'elsewhere'
    elseif r.token ~= '' then
      answer = 'claimed'
    elseif share.is_held(queue, account) then
      answer = 'held'
    else
      answer = 'leaving'
      redis.call('ZADD', keys.queue(queue, 'leaving'), now, id) -- first: after a fault it is in no other index
      redis.call('HSET', keys.record(id), 'leaving', site, 'moves', (tonumber(r.moves) or 0) + 1, 'due', (requeue.take_out(id, r)),
        'stream', '', 'mid', '', 'charged', '')
    end
  end
  answers[#answers + 1] = answer
end
return answers
