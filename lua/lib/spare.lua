-- lib/spare: how much idle work may start. It leaves `spare_slots` of the queue's slots free, so that what comes next starts at
-- once.
--
-- uses keys:     queue
-- uses ready:    ring
-- uses breaker:  facts_of

-- Return how much more may start. Without a bound where the queue has no slot to spare: one slot, or none known. A claim has a
-- slot until its end is written, also while an output is stored, and that of a director that is gone until its lease is over.
function spare.room(queue, slots, kept)
  slots, kept = tonumber(slots or 0), tonumber(kept or 0)
  if kept == 0 or slots <= kept then return math.huge end
  return slots - kept - redis.call('ZCARD', keys.queue(queue, 'lease'))
end

-- Wake a director if idle work waits that has room now: a director with a spare slot waits at the wakeup, as if nothing waited.
-- Without a bound it never does. For scripts that free a slot, or find more of them.
spare.READY, spare.BEHIND = 15, 16 -- places in breaker.facts_of
function spare.ring(queue)
  local facts = breaker.facts_of(queue)
  if (facts[spare.READY] or '0') == '0' and (facts[spare.BEHIND] or '0') == '0' then return end
  local m = redis.call('HMGET', keys.queue(queue, 'meta'), 'mask:idle', 'slots', 'spare_slots')
  if (m[1] or '0') == '0' and redis.call('EXISTS', keys.queue(queue, 'vtime:idle')) == 0 then return end
  local room = spare.room(queue, m[2], m[3])
  if room > 0 and room < math.huge then ready.ring(queue) end
end
