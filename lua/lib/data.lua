-- lib/data: count the bytes that an account's data takes in Redis, by the time at which it expires. Data expires silently, so
-- no script could subtract it: a bucket of the hash is forgotten when its time is over.
--
-- {a:<account>}:data   until_ms -> bytes, about thirty buckets; `old` -> '<bytes> <until_ms>', see recount
--
-- Counted are inputs, outputs, logs and events of all kinds of runs, waiting and ended, and a fixed part for what else one
-- takes (director/core/data_bytes.py). A create counts as if it ended at once; what is long in its record counts as long as the
-- record. Its director counts a late or large end, and a keeper what is older than that and still there. Files count with their
-- records. What has no end (texts of models, deployments) counts in a bucket of the far future, which each pass of a keeper sets
-- again. The figure is an estimate: what is deleted counts until its time is over.
-- What was canceled or expired after a long wait counts up to half too short; small outputs and events of lost attempts
-- count in the fixed part. Each error ends with its bucket or with a keeper's pass, and the sum is never below zero. So a
-- release that counts less beside one that counts more does no harm that lasts. A process of release 0.3.0 counts no files,
-- no texts of models, and each record as if it were short.
--
-- uses keys:     clock

-- Return all bytes that count, {until_ms, bytes} of each bucket in order of time, and the fields that are over.
function data.counted(hash, now)
  local flat, total, buckets, over = redis.call('HGETALL', hash), 0, {}, {}
  for i = 1, #flat, 2 do
    local until_ms, bytes = tonumber(flat[i]), tonumber(flat[i + 1])
    if not until_ms then bytes, until_ms = string.match(flat[i + 1], '^(%d+) (%d+)$') end
    until_ms, bytes = tonumber(until_ms), tonumber(bytes)
    if until_ms <= now then
      over[#over + 1] = flat[i]
    else
      total = total + bytes
      buckets[#buckets + 1] = { until_ms, bytes }
    end
  end
  table.sort(buckets, function(one, other) return one[1] < other[1] end)
  return total, buckets, over
end

-- Forget what is over, and let the hash live as long as its last bucket. Called when a bucket begins: so one command counts.
function data.tidy(hash, now)
  local _, buckets, over = data.counted(hash, now)
  if #over > 0 then redis.call('HDEL', hash, unpack(over)) end
  if #buckets > 0 then redis.call('PEXPIREAT', hash, string.format('%d', buckets[#buckets][1])) end
end

-- Count bytes of data that expires at this time. given: now_ms, '' for the server's clock
function data.count(hash, until_ms, bytes, given)
  if redis.call('HINCRBY', hash, until_ms, bytes) == tonumber(bytes) then data.tidy(hash, keys.clock(given)) end
end

-- Return the refusal of bytes that would be more than `most` beside this total: {total, ms until so much expires that they
-- fit}.
function data.refusal_of(total, buckets, bytes, until_ms, most, now)
  local left = total + bytes
  for _, held in ipairs(buckets) do
    left = left - held[2]
    if left <= most then return { total, held[1] - now } end
  end
  return { total, until_ms - now } -- of the same batch, or larger than all that it may have
end

-- Count less of a bucket, never less than nothing: another bucket, or none, may have had it.
function data.discount(hash, until_ms, bytes)
  local left = tonumber(redis.call('HGET', hash, until_ms) or 0) - bytes
  if left > 0 then
    redis.call('HINCRBY', hash, until_ms, -bytes)
  elseif left == 0 then
    redis.call('HDEL', hash, until_ms)
  end
end
