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

local live, queue, site, now = KEYS[1], QUEUE, ARGV[1], clock(ARGV[2])

local function depart(id, r)
  local due = r.mid == '' and redis.call('ZSCORE', queue_key(queue, 'delayed'), id) or ''
  unplace(id, r)
  correct(r, 0)
  count(queue, 'queued', r.account, r.arrival ~= '' and -1 or 0)
  redis.call('ZREM', live, id)
  for _, index in ipairs({ 'deadline', 'delayed' }) do redis.call('ZREM', queue_key(queue, index), id) end
  redis.call('ZADD', queue_key(queue, 'leaving'), now, id)
  redis.call('HSET', record_key(id), 'leaving', site, 'moves', (tonumber(r.moves) or 0) + 1, 'due', due,
    'stream', '', 'mid', '', 'charged', '')
end

local answers = {}
for i = 3, #ARGV, 2 do
  local id, account = ARGV[i], ARGV[i + 1]
  local r = read(id)
  local answer = 'gone'
  if r and not TERMINAL[r.status] and r.queue == queue and r.account == account and r.moved == '' then
    if r.leaving ~= '' then
      answer = r.leaving == site and 'leaving' or 'elsewhere'
    elseif r.token ~= '' then
      answer = 'claimed'
    elseif is_held(queue, account) then
      answer = 'held'
    else
      depart(id, r)
      answer = 'leaving'
    end
  end
  answers[#answers + 1] = answer
end
return answers
