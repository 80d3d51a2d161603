#!lua flags=allow-oom
-- resize: change the number of streams of each lane. Strands nothing: streams above the new number are still read
-- while they hold an entry, waiting or claimed.
--
--   KEYS[1]  meta     hash  {p}:q:<queue>:meta
--   ARGV[1]  streams  1..32
--   Returns  {streams, read}  new work goes to the first `streams`; work is read from the first `read`
--            {}               the queue is not registered
--
-- uses keys:     QUEUE, stream
-- uses share:    ALL_LANES

local meta, queue, streams = KEYS[1], keys.QUEUE, tonumber(ARGV[1])

local read_from = tonumber(redis.call('HGET', meta, 'read'))
if not read_from then return {} end

local function empty(number)
  for _, lane in ipairs(share.ALL_LANES) do
    if redis.call('XLEN', keys.stream(queue, lane, number)) > 0 then return false end
  end
  return true
end
read_from = math.max(read_from, streams)
while read_from > streams and empty(read_from - 1) do read_from = read_from - 1 end
redis.call('HSET', meta, 'streams', streams, 'read', read_from)
return { streams, read_from }
