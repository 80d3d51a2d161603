-- lib/bucket: the bucket of tokens of an account, see budget and settle.

bucket.KEPT_MS = 3456000000 -- 40 days: longer than a month

-- The tokens that are left of a minute's bucket, with what came since. A clock that went back brings nothing.
function bucket.minute_left(text, most, now)
  local left, at = string.match(text or '', '^(%S+) (%S+)')
  if not left then return most end
  return math.min(most, left + math.max(0, now - at) * most / 60000)
end
