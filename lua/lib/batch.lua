-- lib/batch: carry out a call of many items, so that what they share is read once and written once.
--
--   KEYS[…]  those of each item, one item after the other
--   ARGV[…]  for each item: how many arguments it has, and its arguments
--
-- uses records:  as_reply

-- Call step(key, arg, last) for each item: its KEYS follow `key`, its ARGV follow `arg` and end at `last`. Then
-- share.flush(), and write_own(own) for each item whose step returned `own` beside its reply. Returns the replies. A fault
-- of one item does not touch the others: its reply is the error, and its caller sends it again alone.
function batch.each(width, step, write_shared, write_own)
  local replies, owns, last = {}, {}, 0
  for key = 0, #KEYS - 1, width do
    local arg = last + 1
    last = arg + ARGV[arg]
    local is_done, reply, own = pcall(step, key, arg, last)
    replies[#replies + 1] = is_done and reply or records.as_reply(reply)
    owns[#replies] = own
  end
  write_shared()
  for i = 1, #replies do
    local is_done, fault = true, nil
    if owns[i] then is_done, fault = pcall(write_own, owns[i]) end
    if not is_done then replies[i] = records.as_reply(fault) end
  end
  return replies
end
