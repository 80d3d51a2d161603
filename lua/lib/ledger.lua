-- lib/ledger: count what runs used, one row for each account, model, API token and UTC day. The script that ends a run or
-- takes its claim away writes it in the same step: so a kill neither loses nor doubles anything.
--
--   {p}:ledger:<yyyymm>            set   accounts with rows in this month
--   {p}:ledger:<yyyymm>:<account>  hash  '<dd> <model> <API token>' -> '<runs> <ms> <input> <cached> <output> <bytes>'
--                                        zeros at the end are left out. Day 00 is the whole month, see fold
--
-- A month of an account in one hash stays one compact block: 73 bytes a row, where a hash for each day takes 190.
-- Commands of a call: 1 for each row and 1 for each account. The first rows of a day: 1 more for each account, and 3.
--
-- uses keys:     ledger, ledger_accounts

ledger.KEPT_MS = 34560000000 -- 400 days since the last new row; the keeper writes another lifetime when it folds
ledger.DAY_MS = 86400000

-- The month as '202611' and the day as '05', by the proleptic Gregorian calendar: years that begin in March have their leap
-- day last.
function ledger.date(now)
  local days = math.floor(now / ledger.DAY_MS) + 719468
  local era = math.floor(days / 146097)
  local of_era = days - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524) - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local part = math.floor((5 * of_year + 2) / 153)
  local day = of_year - math.floor((153 * part + 2) / 5) + 1
  local month = part < 10 and part + 3 or part - 9
  return string.format('%04d%02d', year + era * 400 + (month <= 2 and 1 or 0), month), string.format('%02d', day)
end

-- Add the numbers of a row to sums, which may be empty.
function ledger.add_to(sums, row)
  local i = 0
  for number in string.gmatch(row, '%d+') do
    i = i + 1
    sums[i] = (sums[i] or 0) + number
  end
end

function ledger.packed(sums)
  local last = #sums -- a newer release may have more numbers
  while last > 1 and sums[last] == 0 do last = last - 1 end
  local numbers = {}
  for k = 1, last do numbers[k] = string.format('%.0f', sums[k]) end
  return table.concat(numbers, ' ')
end

-- Days with rows that were read in this call: their month, name and rows by account. A call hardly ever has two.
ledger.days = {}

-- Read the row of its account, model, API token and day. Call it before anything of an end is written: what can fail on a bad
-- key fails here.
function ledger.look_up(r, now)
  local number = math.floor(now / ledger.DAY_MS)
  local day = ledger.days[number]
  if not day then
    local month, name = ledger.date(now)
    day = { month = month, name = name, accounts = {}, has_read_index = false }
    ledger.days[number] = day
  end
  local rows, field = day.accounts[r.account] or {}, day.name .. ' ' .. r.model .. ' ' .. r.api_token
  day.accounts[r.account] = rows
  if not rows[field] then
    local known = redis.call('HGET', keys.ledger(day.month, r.account), field)
    if not known and not day.has_read_index then redis.call('SISMEMBER', keys.ledger_accounts(day.month), r.account) end
    day.has_read_index = day.has_read_index or not known
    rows[field] = { is_new = not known, has_changed = false, sums = {} }
    ledger.add_to(rows[field].sums, known or '')
  end
  return rows[field]
end

-- Count what one run used; ledger.write writes it. row: of ledger.look_up
function ledger.add(row, used)
  ledger.add_to(row.sums, used)
  row.has_changed = true
end

-- Write the rows of an account that changed. Returns true if one of them is new.
function ledger.write_account(key, rows)
  local fields, has_new = {}, false
  for field, row in pairs(rows) do
    if row.has_changed then
      fields[#fields + 1], fields[#fields + 2] = field, ledger.packed(row.sums)
      has_new = has_new or row.is_new
      row.has_changed, row.is_new = false, false
    end
  end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  if has_new then redis.call('PEXPIRE', key, ledger.KEPT_MS) end
  return has_new
end

function ledger.write()
  for _, day in pairs(ledger.days) do
    local new = {}
    for account, rows in pairs(day.accounts) do
      if ledger.write_account(keys.ledger(day.month, account), rows) then new[#new + 1] = account end
    end
    if #new > 0 then
      redis.call('SADD', keys.ledger_accounts(day.month), unpack(new))
      redis.call('PEXPIRE', keys.ledger_accounts(day.month), ledger.KEPT_MS)
    end
  end
end
