-- lib/estimate: learn how long runs take, and correct the waiting times that callers are given.
-- Needs lib/keys, lib/place.
--
-- meta: service_ms, service_dev  mean and deviation of the time that a run keeps a slot; new runs count most
--       service_cost             mean declared cost of those runs
--       scale50, scale90         factors for the waiting times that callers are given
--       moved_at                 end of the last standstill: earlier estimates prove nothing

local RECENT = 50 -- runs that the means remember
local ODD = 8 -- a declared cost counts as at most this many times the mean, and at least this part of it
local UNKNOWN_S = 1

-- Note the time that a run kept a slot. `facts`: of facts_of, which keep the means until write_service.
local service, has_other_cost
local function note_service(facts, ms, cost)
  local known, mean, mean_cost = tonumber(facts[9] or 0), facts[10] or ms, tonumber(facts[12] or cost)
  local n, off = math.min(RECENT, known + 1), ms - mean
  local counted_cost = math.max(mean_cost / ODD, math.min(mean_cost * ODD, cost))
  facts[11] = math.sqrt((1 - 1 / n) * ((facts[11] or 0) ^ 2 + off * off / n))
  facts[9], facts[10], facts[12] = n, mean + off / n, mean_cost + (counted_cost - mean_cost) / n
  service, has_other_cost = facts, has_other_cost or n ~= known or counted_cost ~= mean_cost
end

local function write_service(queue)
  if not service then return end
  local meta = queue_key(queue, 'meta')
  redis.call('HSET', meta, 'service_ms', service[10], 'service_dev', service[11])
  if has_other_cost then redis.call('HSET', meta, 'service_n', service[9], 'service_cost', service[12]) end -- hardly ever
  service, has_other_cost = nil, nil
end

-- Expected seconds of a slot for a prediction of this cost.
local means -- read once, since a script runs alone
local function expected_s(r)
  means = means or redis.call('HMGET', queue_key(r.queue, 'meta'), 'service_ms', 'service_cost')
  local m = means
  if not m[1] then return tonumber(r.cost) * UNKNOWN_S end
  return math.max(0.001, m[1] / 1000) * r.cost / m[2]
end

-- Later submits may go first, and their number is unknown. So estimates are scaled by their results: up a step after each
-- wait that was longer, down after each other. The ratio of the steps leaves half above p50 and a tenth above p90.
local STEP, LEAST, MOST = 0.02, 0.5, 3
local function moved(scale, was_longer, missing)
  return math.min(MOST, math.max(LEAST, (scale or 1) * math.exp(STEP * ((was_longer and 1 or 0) - missing))))
end

-- Compare the estimate on acceptance with the wait. write_scores writes the result.
local BUCKETS_S = { 0.1, 0.5, 1, 5, 15, 60, 300 }
local scales
local function score(r, now)
  if r.eta90 == '' or r.claims ~= '0' then return end
  if not scales then
    local m = redis.call('HMGET', queue_key(r.queue, 'meta'), 'scale50', 'scale90', 'moved_at')
    scales = { p50 = m[1], p90 = m[2], moved_at = tonumber(m[3] or 0) }
  end
  if tonumber(r.created) < scales.moved_at then return end
  local waited, eta50, eta90 = now - r.created, tonumber(r.eta50), tonumber(r.eta90)
  local error_s, bucket = math.abs(waited - eta50) / 1000, 'inf'
  for i = #BUCKETS_S, 1, -1 do
    if error_s <= BUCKETS_S[i] then bucket = BUCKETS_S[i] end
  end
  count_later('tally', 'eta_error:' .. bucket, 1)
  count_later('tally', waited <= eta90 and 'eta_kept' or 'eta_missed', 1)
  scales.p50, scales.p90 = moved(scales.p50, waited > eta50, 0.5), moved(scales.p90, waited > eta90, 0.1)
  scales.has_moved = true
end

local function write_scores()
  if not scales or not scales.has_moved then return end
  set_later('scale50', scales.p50)
  set_later('scale90', scales.p90)
end
