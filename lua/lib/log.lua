-- lib/log: write each step of a prediction to its partition's log, for auditors. The record has the prediction itself.
-- Needs lib/keys.

-- About this many are kept: the server cuts whole blocks, which costs almost nothing. A late reader counts what it missed.
local MOST_LOGGED = 10000

local function log(kind, id, queue, account, now, detail)
  redis.call('XADD', log_key(), 'MAXLEN', '~', MOST_LOGGED, '*',
    'id', id, 'kind', kind, 'queue', queue, 'account', account, 'at', now, 'detail', detail or '')
end
