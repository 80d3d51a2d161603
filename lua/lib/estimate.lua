-- lib/estimate: learn how long runs take, and how much longer waits are than the runs before them.
-- Needs lib/keys, lib/place.
--
-- The run time is the mean of the last 50 runs. Once six in a row were further than 1.5 deviations from it, on one side, the
-- run time has changed, and the six count alone. If times are normal, one run is that far off
-- with a chance of 0.07 on each side. If they are exponential, the chance is 0.08 above. Six in a row hardly ever are.
-- Later submits may go first, and their number is unknown. So p50 and p90 have a factor each. It goes up a step after a wait
-- that was longer, and down a step after any other (Robbins and Monro, 1951). The ratio of the steps leaves half of the waits
-- above p50 and about a tenth above p90. A wait is compared with its number of runs, as long as they are now, times the
-- present factor. Compared with the estimate that its caller got, each prediction of a batch would move the factor for the
-- same error.
--
-- meta: service_ms, service_dev  mean and deviation of the time that a run keeps a slot
--       service_n, service_cost  number of those runs, and their mean declared cost
--       service_row              side and times of the runs in a row that were far from the mean; hardly ever any
--       late50, late90           factors for the waiting times that callers are given
--       moved_at                 end of the last standstill: earlier estimates prove nothing

local RECENT = 50
local ROW, FAR = 6, 1.5
local ODD = 8 -- a declared cost counts as at most this many times the mean, and at least this part of it
local UNKNOWN_S = 1
local LATE90 = 1.3 -- until waits have taught it

local service, has_other_cost
local row, has_other_row

-- Let the runs of the row count alone once they are enough. Returns how many count then, else `n`.
local function start_again(facts, n)
  local many, sum, squares = 0, 0, 0
  for ms in string.gmatch(row, '%d+') do many, sum, squares = many + 1, sum + ms, squares + ms * ms end
  if many < ROW then return n end
  local mean = sum / many
  facts[10], facts[11], row = mean, math.sqrt(math.max(0, squares / many - mean * mean)), ''
  return many
end

-- Note the time that a run kept a slot. `facts`: of facts_of, which keep the means until write_service.
local function note_service(facts, ms, cost)
  local known, mean, mean_cost = tonumber(facts[9] or 0), facts[10] or ms, tonumber(facts[12] or cost)
  local n, off, former = math.min(RECENT, known + 1), ms - mean, row or facts[13] or ''
  local counted_cost = math.max(mean_cost / ODD, math.min(mean_cost * ODD, cost))
  local is_far = facts[11] and math.abs(off) > FAR * facts[11]
  facts[10], facts[11] = mean + off / n, math.sqrt((1 - 1 / n) * ((facts[11] or 0) ^ 2 + off * off / n))
  row = ''
  if is_far then
    local side = off > 0 and '+' or '-'
    row = (string.sub(former, 1, 1) == side and former or side) .. ' ' .. ms
    n = start_again(facts, n)
  end
  facts[9], facts[12] = n, mean_cost + (counted_cost - mean_cost) / n
  service, has_other_cost = facts, has_other_cost or n ~= known or counted_cost ~= mean_cost
  has_other_row = has_other_row or row ~= former
end

local function write_service(queue)
  if not service then return end
  local meta = queue_key(queue, 'meta')
  redis.call('HSET', meta, 'service_ms', service[10], 'service_dev', service[11])
  if has_other_cost then redis.call('HSET', meta, 'service_n', service[9], 'service_cost', service[12]) end -- hardly ever
  if has_other_row then redis.call('HSET', meta, 'service_row', row) end -- hardly ever
end

-- Expected seconds of a slot for a prediction of this cost.
local means -- read once, since a script runs alone
local function expected_s(r)
  means = means or redis.call('HMGET', queue_key(r.queue, 'meta'), 'service_ms', 'service_cost')
  local m = means
  if not m[1] then return tonumber(r.cost) * UNKNOWN_S end
  return math.max(0.001, m[1] / 1000) * r.cost / m[2]
end

local STEP, MOST = 0.03, 5
local ABOVE50, ABOVE90 = 0.5, 0.08 -- long waits follow each other: with a tenth, 17 of 100 waits in bursts were above p90
local function moved(factor, was_longer, above, least)
  return math.min(MOST, math.max(least, factor * math.exp(STEP * ((was_longer and 1 or 0) - above))))
end

-- Compare the estimate on acceptance with the wait. write_scores writes the result. `runs` of the record: p50 and p90 in
-- runs, without the factors; '' if release 0.2.0 accepted it.
local BUCKETS_S = { 0.1, 0.5, 1, 5, 15, 60, 300 }
local scores
local function score(r, now)
  if r.eta90 == '' or r.claims ~= '0' then return end
  if not scores then
    local m = redis.call('HMGET', queue_key(r.queue, 'meta'), 'late50', 'late90', 'moved_at', 'service_ms')
    scores = { late50 = tonumber(m[1] or 1), late90 = tonumber(m[2] or LATE90), moved_at = tonumber(m[3] or 0),
      run_ms = tonumber(m[4]) }
  end
  if tonumber(r.created) < scores.moved_at then return end
  local waited, error_s, bucket = now - r.created, math.abs(now - r.created - r.eta50) / 1000, 'inf'
  for i = #BUCKETS_S, 1, -1 do
    if error_s <= BUCKETS_S[i] then bucket = BUCKETS_S[i] end
  end
  count_later('tally', 'eta_error:' .. bucket, 1)
  count_later('tally', waited <= tonumber(r.eta90) and 'eta_kept' or 'eta_missed', 1)
  local runs50, runs90 = string.match(r.runs, '(%S+) (%S+)')
  if not runs50 or not scores.run_ms then return end
  scores.late50 = moved(scores.late50, waited > scores.late50 * runs50 * scores.run_ms, ABOVE50, 0.5)
  scores.late90 = moved(scores.late90, waited > scores.late90 * runs90 * scores.run_ms, ABOVE90, 1)
  scores.has_moved = true
end

local function write_scores()
  if not scores or not scores.has_moved then return end
  set_later('late50', scores.late50)
  set_later('late90', scores.late90)
end
