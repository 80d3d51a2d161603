-- lib/batch: carry out a step for each item of a call, so that what they share is read once and written once.
--
--   KEYS[…]  those of each item, one item after the other
--   ARGV[…]  for each item: how many arguments it has, and its arguments

-- Call step(keys, args) for each item and return the replies. A fault of one item does not touch the others: its reply is
-- the error, and the caller sends it again by itself.
local function for_each_item(width, step)
  local replies, at = {}, 1
  for first = 1, #KEYS, width do
    local keys, args, n = {}, {}, tonumber(ARGV[at])
    for i = 1, width do keys[i] = KEYS[first + i - 1] end
    for i = 1, n do args[i] = ARGV[at + i] end
    at = at + n + 1
    local is_done, reply = pcall(step, keys, args)
    if not is_done then reply = { err = type(reply) == 'table' and reply.err or tostring(reply) } end
    replies[#replies + 1] = reply
  end
  return replies
end
