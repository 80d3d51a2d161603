-- lib/spare: how much idle work may start. It leaves `spare_slots` of the queue's slots free, so that what comes next starts at
-- once.
--
-- uses keys:     queue
-- uses ready:    ring
-- uses breaker:  facts_of

-- Return how much more may start. There is no bound if the queue has no slot to spare: it has one slot, or none is known. A
-- claim uses its slot until its end is written, also while its output is stored. The claim of a dead director uses one until
-- its lease is over.
function spare.room(queue, slots, kept)
  slots, kept = tonumber(slots or 0), tonumber(kept or 0)
  if kept == 0 or slots <= kept then return math.huge end
  return slots - kept - redis.call('ZCARD', keys.queue(queue, 'lease'))
end

-- Wake a director if idle work waits and may start now. A director that keeps a slot free waits at the wakeup, as if nothing
-- waited. Without a bound no director does, unless there was one until now: with fewer slots the queue may have none to spare.
-- Scripts that free a slot call this, and with `has_moved` those that find another number of slots.
spare.READY, spare.BEHIND = 15, 16 -- places in breaker.facts_of
function spare.ring(queue, has_moved)
  local facts = breaker.facts_of(queue)
  local is_ready, is_behind = (facts[spare.READY] or '0') ~= '0', (facts[spare.BEHIND] or '0') ~= '0'
  if not is_ready and not (is_behind and redis.call('EXISTS', keys.queue(queue, 'vtime:idle')) == 1) then return end
  local room = spare.room(queue, unpack(redis.call('HMGET', keys.queue(queue, 'meta'), 'slots', 'spare_slots')))
  if room > 0 and (has_moved or room < math.huge) then ready.ring(queue) end
end
