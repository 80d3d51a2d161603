-- lib/keys: spell keys of ids and queues that a script finds while it runs, and read the server's clock.
-- director/broker/keys.py owns the spelling; a test compares the two. All keys carry the hash tag of KEYS[1].

keys.TAG = string.match(KEYS[1], '^{p%d+}')
-- The id if KEYS[1] is a record, and the queue if it is a key of one.
keys.ID = string.match(KEYS[1], ':rec:(.+)$')
keys.QUEUE = string.match(KEYS[1], ':q:(.+):%l+$')
keys.GROUP = 'directors'
keys.ALIVE_MS = 20000 -- a director silent for longer is not counted. Nor is one whose last heartbeat is as far
-- ahead: it came before the clock went back

function keys.record(id) return keys.TAG .. ':rec:' .. id end
function keys.input(id) return keys.TAG .. ':in:' .. id end
function keys.output(id) return keys.TAG .. ':out:' .. id end
function keys.events(id) return keys.TAG .. ':ev:' .. id end
function keys.channel(id) return keys.TAG .. ':ch:' .. id end
function keys.owed() return keys.TAG .. ':owed' end
function keys.log() return keys.TAG .. ':log' end
function keys.unspent() return keys.TAG .. ':unspent' end
function keys.unsettled() return keys.TAG .. ':unsettled' end
function keys.ledger_accounts(month) return keys.TAG .. ':ledger:' .. month end
function keys.ledger(month, account) return keys.TAG .. ':ledger:' .. month .. ':' .. account end
function keys.queue(queue, what) return keys.TAG .. ':q:' .. queue .. ':' .. what end
function keys.stream(queue, lane, number) return keys.queue(queue, lane .. ':s' .. number) end
function keys.kick(consumer) return 'kick:' .. consumer end
function keys.ends(waiter) return 'kick:ends:' .. waiter end

-- Milliseconds by the server's clock, which is read once; a test may pass its own. `now`: what the last call returned.
keys.server_ms, keys.now = nil, nil
function keys.clock(given)
  if given and given ~= '' then
    keys.now = tonumber(given)
    return keys.now
  end
  if not keys.server_ms then
    local time = redis.call('TIME')
    keys.server_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  keys.now = keys.server_ms
  return keys.now
end
