-- lib/batch: carry out a call of many items, so that what they share is read once and written once.
--
--   KEYS[…]  those of each item, one item after the other
--   ARGV[…]  for each item: how many arguments it has, and its arguments

local function slice(list, first, length)
  local part = {}
  for i = 1, length do part[i] = list[first + i - 1] end
  return part
end

-- Call step(keys, args) for each item, then write_shared(). Returns the replies. A step may return a function too, which
-- writes the item: this runs after what the items share was written. A fault of one item does not touch the others: its
-- reply is the error, and its caller sends it again alone.
local function for_each_item(width, step, write_shared)
  local replies, writes, at = {}, {}, 1
  for first = 1, #KEYS, width do
    local keys, args = KEYS, ARGV
    if #KEYS == width then
      table.remove(ARGV, 1)
    else
      keys, args, at = slice(KEYS, first, width), slice(ARGV, at + 1, ARGV[at]), at + ARGV[at] + 1
    end
    local is_done, reply, write = pcall(step, keys, args)
    replies[#replies + 1] = is_done and reply or as_reply(reply)
    writes[#replies] = write
  end
  write_shared()
  for i = 1, #replies do
    local is_done, fault = true, nil
    if writes[i] then is_done, fault = pcall(writes[i]) end
    if not is_done then replies[i] = as_reply(fault) end
  end
  return replies
end
