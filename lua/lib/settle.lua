-- lib/settle: make a prediction terminal, in the same way for every script.
-- Needs lib/keys, lib/log, lib/place, lib/estimate, lib/share, lib/breaker.

-- ms of its runs so far, with the one that ends now. A silent director may have stopped at any time before its lease
-- expired: the run counts until then.
local function ran_in_all(id, r, started, now)
  local before = tonumber(r.ran_ms) or 0
  if r.token == '' or started == '' then return before end
  local until_ms = math.min(now, tonumber(redis.call('ZSCORE', queue_key(r.queue, 'lease'), id)) or now)
  return before + math.max(0, until_ms - started)
end

-- True if it ends later than its lane's objective and never started: no claim will count it as missed.
local function is_late_start(r, within_ms, now)
  return r.token == '' and r.claims == '0' and r.revivals == '' and (within_ms or '') ~= '' and now - r.created > tonumber(within_ms)
end

-- Notify the API process that holds the caller's response, with the whole answer, so that it need not ask. A larger end
-- is notified by id alone: Redis cuts off a subscriber that cannot keep up.
local MOST_SENT_BYTES = 16384
local function tell_waiter(own, end_, output, logs)
  local code, error_text, metrics = end_.code or '', end_.error or '', end_.metrics or ''
  local message = own.id
  if #code + #error_text + #metrics + #output + #logs <= MOST_SENT_BYTES then
    local head = { own.id, own.status, own.started == '' and '-' or own.started, own.at, #code, #error_text, #metrics, #output, #logs }
    message = table.concat(head, ' ') .. '\n' .. code .. error_text .. metrics .. output .. logs
  end
  redis.call('PUBLISH', ends_channel(own.r.waiter), message)
end

-- Fields of the record that an end sets, if not empty.
local SET = { 'error', 'code', 'metrics', 'ended' }

-- Overwrite the secret values of an input, which intake padded for it: their places stay, and twice is once. With SET, as
-- SETRANGE is a right that no process has in k8s/base/redis/users.acl.
local function overwrite_secrets(key, places)
  local input, at, parts = redis.call('GET', key), 1, {}
  if not input then return end
  for from, to in string.gmatch(places, '(%d+) (%d+)') do
    parts[#parts + 1] = string.sub(input, at, from)
    parts[#parts + 1] = '"[REDACTED]"' .. string.rep(' ', to - from - 12)
    at = to + 1
  end
  parts[#parts + 1] = string.sub(input, at)
  redis.call('SET', key, table.concat(parts), 'KEEPTTL')
end

-- Write the prediction's own keys, after what it shares with others. own: what settle_later returned.
local function write_end(own)
  local id, r, end_, record = own.id, own.r, own.end_, record_key(own.id)
  local output, logs, code = end_.output or '', end_.logs or '', end_.code or ''
  redis.call('HSET', record, unpack(own.fields))
  -- its place and its claim, which only `revive` would need: 62 bytes of a record that is kept for a week
  redis.call('HDEL', record, 'token', 'mid', 'stream', 'shard', 'arrival', 'charged', 'cancel', 'waiter')
  redis.call('PEXPIRE', record, own.record_ttl)
  redis.call('PEXPIRE', input_key(id), own.data_ttl)
  if r.secret ~= '' then overwrite_secrets(input_key(id), r.secret) end
  if own.wants_end then redis.call('ZADD', owed_key(), own.now + (end_.grace_ms or 0), id) end
  if own.ran then redis.call('ZADD', unspent_key(), own.ran, id .. ' ' .. r.account) end
  if output ~= '' or logs ~= '' then
    local data = output_key(id)
    redis.call('HSET', data, 'output', output, 'logs', logs)
    redis.call('PEXPIRE', data, own.data_ttl)
  end
  append(id, own.shown)
  redis.call('PEXPIRE', events_key(id), own.data_ttl)
  log('ended', id, r.queue, r.account, own.at, code ~= '' and own.status .. ' ' .. code or own.status)
  redis.call('PUBLISH', channel(id), own.seq)
  if r.waiter ~= '' then tell_waiter(own, end_, output, logs) end
end

-- End a prediction, for a script that then calls write_shared, and write_end with what this returns.
--
-- end_: error, code, output, logs, metrics, ran_ms, ended (token of the claim that finishes it), shown (events to write
-- before the last), grace_ms (time for the director to deliver the webhook itself), served_s (seconds that it used a
-- slot), over_ms (how long ago the run was over).
local function settle_later(id, r, status, end_, now)
  local facts, at, wants = facts_of(r.queue), string.format('%d', now), wants_end(r)
  local data_ttl = tonumber(r.data_ttl_ms) or tonumber(facts[4] or DATA_TTL_MS) -- the account's wins over the queue's
  local record_ttl = math.max(tonumber(facts[5] or RECORD_TTL_MS), data_ttl)
  if wants then -- the data outlives the owed webhook; `deliver` shortens the lifetime again
    data_ttl, record_ttl = math.max(data_ttl, OWED_MS), math.max(record_ttl, OWED_MS)
  end
  local started = r.started
  if started == '' and end_.ran_ms and end_.ran_ms ~= '' then started = now - end_.ran_ms end
  local ran = r.metered ~= '' and ran_in_all(id, r, started, now - (end_.over_ms or 0))
  local seq, shown = r.seq + 1, end_.shown or {}
  shown[#shown + 1] = entry('completed', at, status)
  local fields = { 'status', status, 'completed', at, 'started', started, 'seq', seq }
  for _, field in ipairs(SET) do
    if (end_[field] or '') ~= '' then
      fields[#fields + 1] = field
      fields[#fields + 1] = end_[field]
    end
  end
  local was_claimed = r.token ~= ''
  correct(r, end_.served_s or 0)
  unplace(id, r)
  count_later(was_claimed and 'running' or 'queued', r.account, -1)
  ended_of[r.account] = true
  if facts[3] == id then end_probe(r.queue, now) end -- its end says nothing about the servers
  count_later('tally', 'ended', 1)
  local within_ms = facts[r.lane == 'high' and 6 or r.lane == 'normal' and 7 or 8]
  if is_late_start(r, within_ms, now) then count_later('tally', 'missed:' .. r.lane, 1) end
  gone[#gone + 1] = id
  gone_from.live, gone_from[was_claimed and 'lease' or 'delayed'] = true, true
  if r.deadline ~= '' or r.start_by ~= '' then gone_from.deadline = true end
  return { id = id, r = r, status = status, end_ = end_, now = now, at = at, started = started, seq = seq, shown = shown,
    fields = fields, ran = ran, wants_end = wants, data_ttl = data_ttl, record_ttl = record_ttl }
end

local function settle(id, r, status, end_, now)
  local own = settle_later(id, r, status, end_, now)
  write_shared(r.queue)
  write_end(own)
end

-- End a prediction whose deadline has passed. `aborted` is only for callers that asked for a deadline: older official
-- clients break on that status.
local function settle_late(id, r, now)
  if r.begun ~= '' then
    settle(id, r, 'canceled', { code = 'deadline_exceeded' }, now)
  elseif r.late == 'aborted' then
    settle(id, r, 'aborted', {}, now)
  else
    settle(id, r, 'failed',
      { error = 'The deadline passed before the prediction could start.', code = 'deadline_exceeded' }, now)
  end
end

-- End a waiting prediction whose time is up. Returns true if it was.
local function end_if_late(id, r, now)
  if past(r.deadline, now) then
    settle_late(id, r, now)
  elseif r.begun == '' and past(r.start_by, now) then
    settle(id, r, 'failed', { error = 'It could not start in the time that was asked for.', code = 'start_by_exceeded' }, now)
  else
    return false
  end
  return true
end

-- Attempts that did not end the prediction: attempt, director, claimed, given up, reason; separated by semicolons.
local function history_with(r, code, now)
  local line = table.concat({ r.attempt, r.holder, r.claimed, now, code }, ' ')
  return r.history == '' and line or r.history .. ';' .. line
end

-- A dead letter keeps its input as long as its record, and its place in line: an operator may revive it.
local function bury(id, r, end_, now)
  settle(id, r, 'failed', end_, now)
  redis.call('HSET', record_key(id), 'history', history_with(r, end_.code, now), 'shard', r.shard, 'arrival', r.arrival)
  local ttl = redis.call('HGET', queue_key(r.queue, 'meta'), 'record_ttl_ms') or RECORD_TTL_MS
  redis.call('PEXPIRE', input_key(id), ttl, 'GT')
  -- letters without a record cannot be revived, and the list must not grow for ever
  redis.call('ZREMRANGEBYSCORE', queue_key(r.queue, 'dead'), '-inf', now - ttl)
  redis.call('ZADD', queue_key(r.queue, 'dead'), now, id)
end
