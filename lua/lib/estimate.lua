-- lib/estimate: learn how long runs take, and how much longer waits are than the runs before them.
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
--       service_out              mean output tokens of runs whose server reports tokens; missing if it reports none
--       late50, late90           factors for the waiting times that callers are given
--       moved_at                 end of the last standstill: earlier estimates prove nothing
--
-- uses keys:     queue
-- uses pending:  count, set

estimate.RECENT = 50
estimate.ROW, estimate.FAR = 6, 1.5
estimate.ODD = 8 -- a declared cost counts as at most this many times the mean, and at least this part of it
estimate.UNKNOWN_S = 1
estimate.LATE90 = 1.3 -- until waits have taught it

estimate.service, estimate.has_other_cost = nil, nil
estimate.row, estimate.has_other_row = nil, nil

-- Let the runs of the row count alone once they are enough. Returns how many count then, else `n`.
function estimate.start_again(facts, n)
  local many, sum, squares = 0, 0, 0
  for ms in string.gmatch(estimate.row, '%d+') do many, sum, squares = many + 1, sum + ms, squares + ms * ms end
  if many < estimate.ROW then return n end
  local mean = sum / many
  facts[10], facts[11], estimate.row = mean, math.sqrt(math.max(0, squares / many - mean * mean)), ''
  return many
end

-- Note the time that a run kept a slot. `facts`: of breaker.facts_of, which keep the means until estimate.write_service.
function estimate.note_service(facts, ms, cost)
  local known, mean, mean_cost = tonumber(facts[9] or 0), facts[10] or ms, tonumber(facts[12] or cost)
  local n, off, former = math.min(estimate.RECENT, known + 1), ms - mean, estimate.row or facts[13] or ''
  local counted_cost = math.max(mean_cost / estimate.ODD, math.min(mean_cost * estimate.ODD, cost))
  local is_far = facts[11] and math.abs(off) > estimate.FAR * facts[11]
  facts[10], facts[11] = mean + off / n, math.sqrt((1 - 1 / n) * ((facts[11] or 0) ^ 2 + off * off / n))
  estimate.row = ''
  if is_far then
    local side = off > 0 and '+' or '-'
    estimate.row = (string.sub(former, 1, 1) == side and former or side) .. ' ' .. ms
    n = estimate.start_again(facts, n)
  end
  facts[9], facts[12] = n, mean_cost + (counted_cost - mean_cost) / n
  estimate.service, estimate.has_other_cost = facts, estimate.has_other_cost or n ~= known or counted_cost ~= mean_cost
  estimate.has_other_row = estimate.has_other_row or estimate.row ~= former
end

function estimate.write_service(queue)
  if not estimate.service then return end
  local meta = keys.queue(queue, 'meta')
  redis.call('HSET', meta, 'service_ms', estimate.service[10], 'service_dev', estimate.service[11])
  if estimate.has_other_cost then redis.call('HSET', meta, 'service_n', estimate.service[9], 'service_cost', estimate.service[12]) end -- hardly ever
  if estimate.has_other_row then redis.call('HSET', meta, 'service_row', estimate.row) end -- hardly ever
end

-- Expected seconds of a slot for a prediction of this cost.
estimate.means = nil -- read once, since a script runs alone
function estimate.expected_s(r)
  estimate.means = estimate.means or redis.call('HMGET', keys.queue(r.queue, 'meta'), 'service_ms', 'service_cost', 'service_out')
  local m = estimate.means
  if not m[1] then return tonumber(r.cost) * estimate.UNKNOWN_S end
  return math.max(0.001, m[1] / 1000) * r.cost / (m[2] or 1)
end

-- ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

-- Where the server reports tokens, a run's share is its tokens: its time says how full the server was, not what it used.
-- A token of the output counts twice (VTC, Sheng et al., OSDI 2024). A weighed token counts as 10 ms, so that releases
-- which charge seconds and those which charge tokens agree roughly. A charge, and so a virtual
-- time, is in seconds: those of a slot, or 10 ms for each weighed token.
estimate.TOKEN_S, estimate.OUTPUT = 0.01, 2
estimate.RECENT_OUTPUTS = 20

-- (input, output) of what a run used, in the form of lib/ledger.
function estimate.tokens_of(used)
  local input, output = string.match(used or '', '^%d+ %d+ (%d+) ?%d* ?(%d*)')
  return tonumber(input) or 0, tonumber(output) or 0
end

-- Note the output of a run whose server reported its tokens. `facts`: as for note_service.
estimate.has_output = false
function estimate.note_tokens(facts, used)
  local input, output = estimate.tokens_of(used)
  if input == 0 then return end
  local mean = tonumber(facts[14]) or output
  facts[14] = mean + (output - mean) / estimate.RECENT_OUTPUTS
  estimate.has_output = true
end

function estimate.write_tokens(queue, facts)
  if estimate.has_output then redis.call('HSET', keys.queue(queue, 'meta'), 'service_out', facts[14]) end
end

-- The charge of a run that is over: its tokens, or its seconds where the server has not reported any. `mean`: service_out. A
-- run whose input was not reported, because its end never came, is charged what was expected of it, or more.
function estimate.charge(r, used, seconds, mean)
  if not mean or used == '' then return seconds end
  local input, output = estimate.tokens_of(used)
  local weighed_s = (input + estimate.OUTPUT * output) * estimate.TOKEN_S
  return input > 0 and weighed_s or math.max(tonumber(r.charged) or 0, weighed_s)
end

-- The charge that is expected of a run: of its bytes and the most that it may answer, as the API counted them.
function estimate.expected_charge(r)
  local seconds, mean = estimate.expected_s(r), tonumber(estimate.means[3] or '')
  if not mean then return seconds end
  local input, most = string.match(r.tokens, '^(%d+) (%d*)$')
  if not input then return seconds end
  return math.max(0.001, (input + estimate.OUTPUT * math.min(tonumber(most) or mean, mean)) * estimate.TOKEN_S)
end

-- ── how true estimates were ──────────────────────────────────────────────────────────────────────────────────────

estimate.STEP, estimate.MOST = 0.03, 5
estimate.ABOVE50, estimate.ABOVE90 = 0.5, 0.08 -- long waits follow each other: with a tenth, 17 of 100 waits in bursts were above p90
function estimate.moved_factor(factor, was_longer, above, least)
  return math.min(estimate.MOST, math.max(least, factor * math.exp(estimate.STEP * ((was_longer and 1 or 0) - above))))
end

-- Compare the estimate on acceptance with the wait. estimate.write_scores writes the result. `runs` of the record: p50 and p90 in
-- runs, without the factors.
estimate.BUCKETS_S = { 0.1, 0.5, 1, 5, 15, 60, 300 }
estimate.scores = nil
function estimate.score(r, now)
  if r.eta90 == '' or r.claims ~= '0' or r.start_after ~= '' then return end -- the wait for a planned time proves nothing
  if not estimate.scores then
    local m = redis.call('HMGET', keys.queue(r.queue, 'meta'), 'late50', 'late90', 'moved_at', 'service_ms')
    estimate.scores = { late50 = tonumber(m[1] or 1), late90 = tonumber(m[2] or estimate.LATE90), moved_at = tonumber(m[3] or 0),
      run_ms = tonumber(m[4]) }
  end
  if tonumber(r.created) < estimate.scores.moved_at then return end
  local waited, error_s, bound = now - r.created, math.abs(now - r.created - r.eta50) / 1000, 'inf'
  for i = #estimate.BUCKETS_S, 1, -1 do
    if error_s <= estimate.BUCKETS_S[i] then bound = estimate.BUCKETS_S[i] end
  end
  pending.count('tally', 'eta_error:' .. bound, 1)
  pending.count('tally', waited <= tonumber(r.eta90) and 'eta_kept' or 'eta_missed', 1)
  local runs50, runs90 = string.match(r.runs, '(%S+) (%S+)')
  if not runs50 or not estimate.scores.run_ms then return end
  estimate.scores.late50 = estimate.moved_factor(estimate.scores.late50, waited > estimate.scores.late50 * runs50 * estimate.scores.run_ms, estimate.ABOVE50, 0.5)
  estimate.scores.late90 = estimate.moved_factor(estimate.scores.late90, waited > estimate.scores.late90 * runs90 * estimate.scores.run_ms, estimate.ABOVE90, 1)
  estimate.scores.has_moved = true
end

function estimate.write_scores()
  if not estimate.scores or not estimate.scores.has_moved then return end
  pending.set('late50', estimate.scores.late50)
  pending.set('late90', estimate.scores.late90)
end
