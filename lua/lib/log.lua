-- lib/log: each step of a prediction is one entry of its partition's log, for whoever keeps account of all that happens.
-- What a prediction is stands in its record; here only what it did. Needs lib/keys.

-- About so many are kept: the server cuts whole blocks of them, which costs next to nothing. Who reads too late counts
-- what he missed.
local MOST_LOGGED = 10000

local function log(kind, id, queue, account, now, detail)
  redis.call('XADD', log_key(), 'MAXLEN', '~', MOST_LOGGED, '*',
    'id', id, 'kind', kind, 'queue', queue, 'account', account, 'at', now, 'detail', detail or '')
end
