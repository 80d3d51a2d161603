-- lib/log: write each step of a prediction to its partition's log, for auditors. The record has the prediction itself.
--
-- uses keys:     log

-- About this many are kept: the server cuts whole blocks, which costs almost nothing. A late reader counts what it missed.
log.MOST_LOGGED = '10000'

function log.write(kind, id, queue, account, now, detail)
  redis.call('XADD', keys.log(), 'MAXLEN', '~', log.MOST_LOGGED, '*',
    'id', id, 'kind', kind, 'queue', queue, 'account', account, 'at', now, 'detail', detail or '')
end
