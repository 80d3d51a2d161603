-- lib/batch: carry out a call of many items, so that what they share is read once and written once.
--
--   KEYS[…]  those of each item, one item after the other
--   ARGV[…]  for each item: how many arguments it has, and its arguments

-- Returns the step's result, and the error if it failed.
local function try(step, ...)
  local is_done, result = pcall(step, ...)
  if is_done then return result end
  return nil, { err = type(result) == 'table' and result.err or tostring(result) }
end

local function slice(list, first, length)
  local part = {}
  for i = 1, length do part[i] = list[first + i - 1] end
  return part
end

-- Call step(keys, args) for each item, then write_shared(). Returns the replies. A step may return a function that writes
-- the item and returns its reply: this runs after what the items share was written. A fault of one item does not touch
-- the others: its reply is the error, and its caller sends it again alone.
local function for_each_item(width, step, write_shared)
  local replies, at = {}, 1
  for first = 1, #KEYS, width do
    local reply, fault = try(step, slice(KEYS, first, width), slice(ARGV, at + 1, ARGV[at]))
    replies[#replies + 1] = fault or reply
    at = at + ARGV[at] + 1
  end
  write_shared()
  for i, reply in ipairs(replies) do
    if type(reply) == 'function' then
      local written, fault = try(reply)
      replies[i] = fault or written
    end
  end
  return replies
end
