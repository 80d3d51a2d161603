-- lib/ledger: count what runs used, one row for each account, model, API token and UTC day. The script that ends a run or
-- takes its claim away writes it in the same step: so a kill neither loses nor doubles anything.
--
--   {p}:ledger:<yyyymm>            set   accounts with rows in this month
--   {p}:ledger:<yyyymm>:<account>  hash  '<dd> <model> <API token>' -> '<runs> <ms> <input> <cached> <output> <bytes>'
--                                        zeros at the end are left out. Day 00 is the whole month, see fold
--
-- A month of an account in one hash stays one compact block: 73 bytes a row, where a hash for each day takes 190.
-- Commands: 2 for each account in a call, and 4 more for the first row of a day.
--
-- uses keys:     ledger, ledger_accounts

ledger.KEPT_MS = 34560000000 -- 400 days since the last new row; the keeper writes another lifetime when it folds
ledger.DAY_MS = 86400000
ledger.EMPTY = { 0, 0, 0, 0, 0, 0 }

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

function ledger.plus(sums, used)
  local numbers, i = {}, 0
  for number in string.gmatch(used or '', '%d+') do
    i = i + 1
    numbers[i] = tonumber(number)
  end
  for k = 1, 6 do numbers[k] = (numbers[k] or 0) + sums[k] end
  return numbers
end

function ledger.packed(sums)
  local last = 6
  while last > 1 and sums[last] == 0 do last = last - 1 end
  local numbers = {}
  for k = 1, last do numbers[k] = string.format('%.0f', sums[k]) end
  return table.concat(numbers, ' ')
end

-- Count what one run used; ledger.write writes it. used: the six numbers, '' if no run began.
ledger.rows = {}
function ledger.add(r, used, now)
  if used == '' then return end
  local month, day = ledger.date(now)
  local of_month = ledger.rows[month] or {}
  local rows, field = of_month[r.account] or {}, day .. ' ' .. r.model .. ' ' .. r.api_token
  ledger.rows[month], of_month[r.account] = of_month, rows
  rows[field] = ledger.plus(rows[field] or ledger.EMPTY, used)
end

function ledger.write_rows(key, rows)
  local fields, written = {}, {}
  for field in pairs(rows) do fields[#fields + 1] = field end
  local known = redis.call('HMGET', key, unpack(fields))
  for i, field in ipairs(fields) do
    written[2 * i - 1], written[2 * i] = field, ledger.packed(ledger.plus(rows[field], known[i]))
  end
  return redis.call('HSET', key, unpack(written))
end

function ledger.write()
  for month, of_month in pairs(ledger.rows) do
    for account, rows in pairs(of_month) do
      local key, index = keys.ledger(month, account), keys.ledger_accounts(month)
      if ledger.write_rows(key, rows) > 0 then
        redis.call('PEXPIRE', key, ledger.KEPT_MS)
        redis.call('SADD', index, account)
        redis.call('PEXPIRE', index, ledger.KEPT_MS)
      end
    end
  end
  ledger.rows = {}
end
