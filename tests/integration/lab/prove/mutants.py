"""Scripts with one line left out or changed, and the world that finds each. A mutant that none finds has the reason."""

import sys
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from director.lab.prove.explore import explore
from director.lab.prove.server import Edit
from director.lab.prove.worlds import WORLDS


class Mutant(NamedTuple):
    """`world`: the one that finds it. `why`: the reason why none does."""

    edit: Edit
    world: str = ""
    why: str = ""


def _of(world: str, script: str, wanted: str, instead: str = "") -> Mutant:
    return Mutant(Edit(wanted, instead, script), world)


LONGEST_S: Final = 120.0  # on a busy machine; alone it takes a second or two
LOST: Final = "then return 'lost' end"
OF_BATCHES: Final = "no world has batches; tests/lua/test_batch.py finds it"
OF_SPLITS: Final = "no world tries a version; tests/lua/test_split.py finds it"
OF_TOKENS: Final = "no world has tokens; tests/lua/test_allow.py and test_grant.py find it"

MUTANTS: Final[dict[str, Mutant]] = {
    # fences
    "a stale claim may finish": _of("takeover", "finish", f"if r.token ~= token {LOST}"),
    "an unknown end is lost": _of(
        "faults", "finish", "if r.ended == token or ended[id] == token then return 'finished' end"
    ),
    "a stale claim may be given back": _of(
        "retries", "release", f"or token == '' or r.token ~= token {LOST}", f"or token == '' {LOST}"
    ),
    "a stale claim may write": _of("takeover", "advance", "if token == '' or r[1] ~= token then return { 'lost' } end"),
    "a stale claim is extended": _of(
        "takeover", "extend", "if token == '' or r[1] ~= token then", "if token == '' then"
    ),
    "a claim is taken back early": _of("takeover", "reap", "'-inf', now, 'LIMIT'", "'-inf', '+inf', 'LIMIT'"),
    "recover does not ask for the lease": _of(
        "takeover",
        "recover",
        "elseif tonumber(redis.call('ZSCORE', keys_queue(queue, 'lease'), id) or 0) <= now then",
        "else",
    ),
    "a running one is canceled at once": _of(
        "cancel", "cancel", "r.leaving == '' and r.token == ''", "r.leaving == ''"
    ),
    "what ended may be canceled": _of("cancel", "cancel", "if records_TERMINAL[r.status] then return 'over' end"),
    "a running one expires at once": _of("cancel", "expire", "    if r.token == '' then\n", "    if true then\n"),
    # repetition
    "a repeated claim hands out more": _of(
        "faults", "claim", "if string.match(last, '^%S+') == nonce then", "if false then"
    ),
    "a repeated claim is not known": _of(
        "faults",
        "claim",
        "if #reply > 2 then redis.call('HSET', keys_queue(queue, 'last'), consumer, table.concat(remembered, ' ')) end",
    ),
    "a repeated claim answers with what is gone": _of(
        "faults", "claim", "if r and r.token == nonce .. '-' .. index then", "if r then"
    ),
    "a create is repeated": _of("first", "enqueue", "  if created then return { 'created', created } end\n"),
    "a key makes two predictions": _of("keys", "enqueue", "  if answer then return answer end\n"),
    "events are written again": _of("faults", "advance", "7 + 2 * math.max(0, seq - last_known)", "7"),
    "events of an end are written again": _of(
        "faults", "finish", "arg + 17 + 2 * math.max(0, r.seq - known)", "arg + 17"
    ),
    "a retry is promoted twice": _of("retries", "promote", "redis.call('ZREM', KEYS[1], id)"),
    "an answer settles another end": _of("letters", "deliver", "if (r[1] or '0') ~= revivals then return 0 end"),
    "a failed attempt counts twice": _of("webhooks", "deliver", "(r[3] or '0') ~= ARGV[7]", "false"),
    "a delivered webhook is noted again": _of(
        "webhooks", "deliver", "if not redis.call('ZSCORE', keys_owed(), id) then return 0 end"
    ),
    "two couriers take one webhook": _of(
        "webhooks", "due", "for _, id in ipairs(ids) do redis.call('ZADD', KEYS[1], 'XX', now + hold_ms, id) end"
    ),
    # places
    "what is accepted is on no list": _of(
        "first", "enqueue", "redis.call('ZADD', keys_queue(queue, 'live'), unpack(live))"
    ),
    "a deadline is on no list": _of("cancel", "enqueue", "if #deadlines > 0 then", "if false then"),
    "what is accepted has no event": _of(
        "first", "enqueue", "redis.call('RPUSH', keys_events(id), 'created ' .. at .. ' ')"
    ),
    "what is handed out has no lease": _of("first", "claim", "if #leases > 0 then", "if false then"),
    "a heartbeat extends nothing": _of(
        "takeover", "extend", "redis.call('ZADD', keys_queue(queue, 'lease'), now + lease_ms, id)"
    ),
    "what is taken back keeps its lease": _of(
        "takeover", "reap", "  redis.call('ZREM', keys_queue(r.queue, 'lease'), id)\n"
    ),
    "what is taken back keeps its token": _of("takeover", "reap", "'started', '', 'token', '',", "'started', '',"),
    "what is taken back keeps its old entry": _of(
        "takeover",
        "reap",
        "    redis.call('XACK', stream, 'directors', unpack(mids))\n    redis.call('XDEL', stream, unpack(mids))\n",
    ),
    "an entry is acknowledged and stays": _of("first", "finish", "    redis.call('XDEL', stream, unpack(mids))\n"),
    "an entry goes and stays pending": _of(
        "first", "finish", "    redis.call('XACK', stream, 'directors', unpack(mids))\n"
    ),
    "an end stays on the list of what lives": _of(
        "first", "finish", "pending_gone_from.live,", "pending_gone_from.delayed,"
    ),
    "an end keeps its lease": _of("first", "finish", "was_claimed and 'lease' or 'delayed'", "'delayed'"),
    "an end forgets its deadline": _of(
        "cancel", "", "  if r.deadline ~= '' or r.start_by ~= '' then", "  if false then"
    ),
    "an end keeps its token": _of(
        "first", "finish", "redis.call('HDEL', record, 'token', 'mid',", "redis.call('HDEL', record, 'mid',"
    ),
    "an ended record lives for ever": _of("first", "finish", "  redis.call('PEXPIRE', record, own.record_ttl)\n"),
    "an ended input lives for ever": _of("first", "finish", "  redis.call('PEXPIRE', keys_input(id), own.data_ttl)\n"),
    "an end owes no webhook": _of("webhooks", "finish", "if own.wants_end then", "if false then"),
    "a delivered webhook is owed": _of("webhooks", "deliver", "redis.call('ZREM', keys_owed(), id)\n"),
    "a revived one is a dead letter": _of("letters", "revive", "redis.call('ZREM', keys_queue(r.queue, 'dead'), id)\n"),
    "a revived one owes its former end": _of("letters", "revive", "redis.call('ZREM', keys_owed(), id)\n"),
    "a revived one keeps its lifetime": _of("letters", "revive", "redis.call('PERSIST', KEYS[1])"),
    "a dropped letter stays": _of("letters", "drop", "redis.call('ZREM', keys_queue(queue, 'dead'), id)", "do end"),
    "claims are not told of a new entry": _of("first", "", "    ready_offer(queue, lane, number, look.mask)\n"),
    "no wakeup is sent for a turn": _of(
        "shares", "", "    ready_ring(queue)\n  end\n  return '', ''", "  end\n  return '', ''"
    ),
    "remaining work wakes no other one": _of("first", "claim", "if left and is_for_others then ready_ring(queue) end"),
    "a put back one is nowhere": _of(
        "shares", "claim", "  pending_add_to_backlog(share_backlog(queue, r.lane, r.account), id, r)\n"
    ),
    "a put back one is in two places": _of(
        "shares", "claim", "  share_take_away(id, r)\n  pending_add_to_backlog(", "  pending_add_to_backlog("
    ),
    "an admitted one stays in its backlog": _of(
        "first", "", "  if #turn.admitted > 0 then redis.call('ZREM', turn.backlog, unpack(turn.admitted)) end\n"
    ),
    "what leaves is still looked for": _of(
        "moves", "depart", "{ 'live', 'deadline', 'delayed' }", "{ 'deadline', 'delayed' }"
    ),
    "what is put back still leaves": _of("moves", "stay", "'leaving', '', 'due'", "'due'"),
    "what leaves may be claimed": _of("moves", "depart", "  share_take_away(id, r)\n"),
    "what leaves is on no list": _of(
        "moves", "depart", "redis.call('ZADD', keys_queue(queue, 'leaving'), now, id)", "do end"
    ),
    # orders
    "the last of a line goes first": _of(
        "lines", "claim", "redis.call('ZRANGE', turn.backlog", "redis.call('ZREVRANGE', turn.backlog"
    ),
    "the turn is another one's": _of("lines", "claim", "turn.own < best.own or", "turn.own > best.own or"),
    "idle work goes first": _of(
        "shares",
        "claim",
        "local function take_any(most)\n",
        "local function take_any(most)\n  if take('idle', 1) then return true end\n",
    ),
    "a retry goes to the tail": _of(
        "lines", "", "  line[#line + 1] = tonumber(r.arrival)\n", "  line[#line + 1] = 9999\n"
    ),
    # counters
    "what runs is not counted": _of("first", "claim", "  pending_count('running', r.account, 1)\n"),
    "what runs counts as waiting": _of("first", "claim", "  pending_count('queued', r.account, -1)\n"),
    "an end is still counted": _of(
        "first",
        "",
        "was_claimed and 'running' or 'queued', r.account, -1)",
        "was_claimed and 'running' or 'queued', r.account, 0)",
    ),
    "an end is not counted": _of("first", "finish", "  pending_count('tally', 'ended', 1)\n"),
    "a retry does not count as waiting": _of(
        "retries", "release", "  share_count_now(r.queue, 'queued', r.account, 1)\n"
    ),
    "a retry counts as running": _of("retries", "release", "  share_count_now(r.queue, 'running', r.account, -1)\n"),
    "what leaves a stream is counted there": _of(
        "cancel", "", "  if r.token == '' then pending_count_ready(r, -1) end\n"
    ),
    "what leaves a backlog is counted there": _of(
        "cancel", "", "  pending_count('meta', 'backlogged:' .. r.lane, -1)\n"
    ),
    "an admitted one counts in its backlog": _of(
        "first", "claim", "      pending_count('meta', 'backlogged:' .. lane, -1)\n"
    ),
    "counts of many are not written": _of("first", "claim", "end\nshare_flush(queue)\n", "end\n"),
    "an attempt is not counted": _of(
        "retries", "claim", "string.format('%d', r.attempt + 1)", "string.format('%d', r.attempt + 0)"
    ),
    "there is one attempt more": _of(
        "retries",
        "release",
        "how.spent and attempt >= tonumber(policy[1])",
        "how.spent and attempt > tonumber(policy[1])",
    ),
    "what was given back was an attempt": _of("retries", "release", "how.spent and attempt or attempt - 1", "attempt"),
    "a lost claim is no attempt": _of("takeover", "reap", "how.spent and attempt or attempt - 1", "attempt - 1"),
    "what is written is not numbered": _of(
        "takeover", "advance", "redis.call('HSET', KEYS[1], 'seq', seq)\n", "do end\n"
    ),
    "a run is not counted at its end": _of("takeover", "finish", "  ledger_write()\n"),
    "a run is not counted at its loss": _of("takeover", "reap", "ledger_write()\nreturn reaped", "return reaped"),
    "a run is not counted when given back": _of("retries", "release", "ledger_write()\nreturn became", "return became"),
    "what leaves is still counted": _of("moves", "depart", "  share_count_now(r.queue, 'queued', r.account, -1)\n"),
    # limits, and what calls of one batch share
    "most_queued lets one more in": _of("keys", "enqueue", ">= tonumber(most_queued)", "> tonumber(most_queued)"),
    "what may run once runs again": _of("lost", "", "(may_have_run and policy[2] == 'fail')", "false"),
    "what items share is not written": _of("first", "enqueue", "  write_shared()\n"),
    "what ends share is not written": _of("first", "finish", "  write_shared()\n"),
    "an end writes nothing of its own": _of("first", "finish", "    if owns[i] then", "    if false then"),
    "a create is known in its batch alone": _of(
        "first", "enqueue", "accepted[id] or (may_be_known and redis.call('HGET', record, 'created'))", "accepted[id]"
    ),
    "an account has two virtual times": _of("shares", "", "  if own then redis.call('ZREM', debt, account) end\n"),
    # idle work, and slots that stay free
    "idle work takes all that is free": _of("spare", "claim", "math.min(most, room))", "most)"),
    "idle work goes beside other work of one claim": _of(
        "spare", "claim", "return idle_room - (#reply - 2)", "return idle_room"
    ),
    "idle work does not ask for room": _of(
        "spare", "claim", "if scanned >= SCAN or room < 1 then", "if scanned >= SCAN then"
    ),
    "what runs takes no room of idle work": _of(
        "spare", "claim", " - redis.call('ZCARD', keys_queue(queue, 'lease'))\nend", "\nend"
    ),
    "all slots are to spare, and idle work waits": _of("shares", "", "slots <= kept then", "slots < kept then"),
    "idle work that waits wakes no other one": _of(
        "spare", "claim", "may_idle_start = has_idle() and", "may_idle_start = false and"
    ),
    "new leases are counted as room is asked for": _of(
        "room",
        "claim",
        "local may_idle_start =",
        "if leases[1] then redis.call('ZADD', keys_queue(queue, 'lease'), unpack(leases)) end\nlocal may_idle_start =",
    ),
    "idle work that may not start wakes one": _of(
        "spare", "claim", "may_idle_start and keys_queue(queue, 'vtime:idle') or nil", "keys_queue(queue, 'vtime:idle')"
    ),
    "an end without room wakes one": _of("spare", "finish", "if room > 0 and (has_moved", "if (has_moved"),
    "an end wakes none for idle work": _of("spare", "finish", "  spare_ring(queue)\n"),
    "an end wakes before its slot is free": _of(
        "spare",
        "finish",
        "  share_flush(queue)\n  ledger_write()\n  spare_ring(queue)\n",
        "  spare_ring(queue)\n  share_flush(queue)\n  ledger_write()\n",
    ),
    "a dead letter wakes none for idle work": _of(
        "spare", "release", "  if r.token ~= '' then spare_ring(r.queue) end\n"
    ),
    "a dead letter wakes before its slot is free": _of(
        "spare",
        "release",
        "  share_flush(r.queue)\n  ends_write(own)\n  if r.token ~= '' then spare_ring(r.queue) end\n",
        "  if r.token ~= '' then spare_ring(r.queue) end\n  share_flush(r.queue)\n  ends_write(own)\n",
    ),
    "what is given back wakes none for idle work": _of(
        "room", "release", "  spare_ring(r.queue)\n  if r.begun", " if r.begun"
    ),
    "more or fewer slots wake none": _of("spare", "extend", "if sums.ready ~= was then spare_ring(queue, true) end"),
    "fewer slots wake none": _of("spare", "extend", "(has_moved or room < math.huge)", "room < math.huge"),
    # what is planned
    "what is planned goes at once": _of("planned", "enqueue", "  if is_planned then\n", "  if false then\n"),
    "what is planned goes early": _of("planned", "promote", "KEYS[1], '-inf', now,", "KEYS[1], '-inf', '+inf',"),
    "what is planned counts before it comes": _of(
        "planned", "enqueue", "if not is_planned then pending_count", "if true then pending_count"
    ),
    "what is planned never counts": _of(
        "planned", "promote", "if r.start_after ~= '' and r.claims == '0' then", "if false then"
    ),
    "a retry counts as new": _of(
        "retries", "promote", "if r.start_after ~= '' and r.claims == '0' then", "if true then"
    ),
    # what is used
    "a run takes the place of earlier ones": _of(
        "first", "finish", "    ledger_add_to(rows[field].sums, known or '')\n"
    ),
    "a run counts for another account": _of(
        "lines", "finish", "keys_ledger(day.month, account), rows)", "keys_ledger(day.month, 'x'), rows)"
    ),
    "runs are counted, and not their tokens": _of(
        "first", "finish", "ledger_add_to(row.sums, used)", "ledger_add_to(row.sums, string.match(used, '%d+'))"
    ),
    # none finds these
    "a budget bounds nothing": Mutant(
        Edit("if not budget or not cost", "if true or not cost", "claim"), why="no world has a claim with a budget"
    ),
    "a bounded queue takes one more": Mutant(
        Edit("- m.claimed >= most", "- m.claimed > most", "enqueue"), why="no world has a bounded queue"
    ),
    "a cancel on the way is forgotten": Mutant(
        Edit("if r.cancel == 'user' and not canceled then return 'cancel' end", "", "vacate"),
        why="no world has a second server, where a prediction arrives",
    ),
    "a bound of one claim strands the rest": Mutant(
        Edit("(scanned >= SCAN or stopped)", "stopped", "claim"),
        why="a claim looks at 64 entries, and no world has so many",
    ),
    "an older change of limits applies": Mutant(
        Edit(" or tonumber(string.match(known, '%S+$')) > tonumber(revision)", "", "enqueue"),
        why="no world has limits with revisions",
    ),
    "a lane that may not run saves turns up": Mutant(
        Edit(
            "return backlogged[lane] ~= '0' and redis.call(", "return backlogged[lane] ~= '0' or redis.call(", "claim"
        ),
        why="no world has two lanes with credit and a limit",
    ),
    "an item at fault ends its batch": Mutant(
        Edit("pcall(step, key, arg, last)", "true, step(key, arg, last)", "finish"),
        why="no world has a record at fault",
    ),
    "expire looks at what has ended": Mutant(
        Edit("if r and not records_TERMINAL[r.status] then", "if r then", "expire"),
        why="the step that ends a prediction takes it off the list of deadlines, so expire never meets it",
    ),
    "a heartbeat leaves the entry's idle time": Mutant(
        Edit(
            "redis.pcall('XCLAIM', keys_stream(queue, r[3], r[4]), 'directors', consumer, 0, r[5], 'JUSTID')",
            "",
            "extend",
        ),
        why="idle time is by the real clock of the server, and recover asks for the lease as well",
    ),
    "no reader is told of an event": Mutant(
        Edit("redis.call('PUBLISH', keys_channel(id), message)", "", "advance"),
        why="a message leaves no trace in the state",
    ),
    "a lost count stops idle work": Mutant(
        Edit("if not has_idle() then return 1 - (#reply - 2) end", "", "claim"),
        why="no world loses the counts of a queue",
    ),
    "a look for idle work takes more than one": Mutant(
        Edit("if not has_idle() then return 1 - (#reply - 2) end", "if not has_idle() then return 9 end", "claim"),
        why="no world loses the counts of a queue",
    ),
    "idle work that may not run wakes one": Mutant(
        Edit("is_behind and redis.call('EXISTS', keys_queue(queue, 'vtime:idle')) == 1", "is_behind", "finish"),
        why="a wakeup in vain costs one claim, and no state is wrong",
    ),
    "a run that is left to another director is not counted": Mutant(
        Edit("local row = r.token == '' and r.left ~= '' and ledger_look_up(r, now)", "local row = nil", "cancel"),
        why="no world has a run that another director follows",
    ),
    "limits of a refused item hold for the next": Mutant(
        Edit("  if refused then\n    share_brought[account] = nil", "  if refused then", "enqueue"), why=OF_BATCHES
    ),
    "items of two lanes know other depths": Mutant(
        Edit(
            "other.ready, other.backlogged = looks[lane].ready, looks[lane].backlogged",
            "local _ = other",
            "enqueue",
        ),
        why=OF_BATCHES,
    ),
    "a late writer changes a split": Mutant(Edit("if is ~= was then return 'changed' end", "", "split"), why=OF_SPLITS),
    "a repeated change of a split is refused": Mutant(
        Edit("if is == becomes then return 'written' end", "", "split"), why=OF_SPLITS
    ),
    "one more deployment tries a version": Mutant(
        Edit("if #tried >= tonumber(ARGV[5])", "if #tried > tonumber(ARGV[5])", "split"), why=OF_SPLITS
    ),
    "a deployment that tries one is refused another": Mutant(
        Edit(" and not redis.call('ZSCORE', KEYS[1], name)", "", "split"), why=OF_SPLITS
    ),
    "a new trial keeps the counts of the last": Mutant(
        Edit("  redis.call('DEL', KEYS[3])\n", "", "split"), why=OF_SPLITS
    ),
    "another share is judged by the last": Mutant(
        Edit("elseif step == 'shares' then", "elseif false then", "split"), why=OF_SPLITS
    ),
    "a run of another split counts": Mutant(
        Edit("if redis.call('GET', KEYS[2]) ~= is then return 'changed' end", "", "count_split"), why=OF_SPLITS
    ),
    "a run of a split counts twice": Mutant(
        Edit("if counted == cursor then return 'counted' end", "", "count_split"), why=OF_SPLITS
    ),
    "two keepers count one run": Mutant(
        Edit("if counted ~= was then return 'changed' end", "", "count_split"), why=OF_SPLITS
    ),
    "a revoked token comes back": Mutant(
        Edit("if redis.call('EXISTS', token) == 0 then return 0 end", "", "allow"), why=OF_TOKENS
    ),
    "a link makes two sessions": Mutant(
        Edit("if link ~= '' then over[#over + 1] = link end", "", "grant"), why=OF_TOKENS
    ),
    "a repeated call makes another session": Mutant(Edit("if known then return known end", "", "grant"), why=OF_TOKENS),
    "a token ends the sessions of others": Mutant(
        Edit("if count[each[3]] == largest and (", "if (", "grant"), why=OF_TOKENS
    ),
    # decisions
    "a canceled one is retried": _of("retries", "", "  if r.cancel == 'user' then return 'canceled' end\n"),
    "a cancel is not written": _of("cancel", "cancel", "redis.call('HSET', KEYS[1], 'cancel', 'user')"),
    "a canceled one that comes back runs": _of("moves", "stay", "if r.cancel ~= 'user' then", "if true then"),
    "a director is not told of a deadline": _of(
        "cancel", "expire", "if r.cancel == '' then redis.call('HSET', keys_record(id), 'cancel', 'deadline') end"
    ),
    "a late one is not ended": _of("cancel", "expire", "if ends_end_if_late(id, r, now) then", "if false then"),
    "what was shown runs again": _of("once", "", " or r.shown ~= ''"),
    "what was shown is not noted": _of("once", "advance", "if has_output and r[6]", "if false and r[6]"),
    "a paused queue hands out": _of("shares", "claim", "if paused == '1' then return { 'paused' } end"),
    "a paused account is handed out": _of(
        "shares", "claim", "elseif not share_may_run(queue, r.account) then", "elseif false then"
    ),
    "a limited account keeps its turns": _of("shares", "claim", "  share_note_running(queue, r.account)\n"),
    "an account with room gets no turns": _of("shares", "finish", "    share_note_running(queue, account)\n"),
    "an account that may run wakes none": _of(
        "shares",
        "",
        "share_join_turns(queue, lane, account) then\n      ready_ring(queue)\n",
        "share_join_turns(queue, lane, account) then\n",
    ),
    "an open breaker hands out": _of(
        "breaker", "claim", "if not is_probe and (breaker_state or '') ~= '' then return { 'open' } end"
    ),
    "several try an open breaker": _of("breaker", "claim", "if is_probe then count = math.min(count, 1) end"),
    "a failed probe closes nothing": _of(
        "breaker", "release", "if breaker_state == 'probing' and m[9] == id then", "if false then"
    ),
    "a probe that ends by itself keeps the breaker": _of(
        "breaker", "", "  if facts[3] == id then breaker_end_probe(r.queue, now) end"
    ),
    # repairs
    "a lost lease is not made again": _of(
        "losses", "reconcile", "redis.call('ZADD', keys_queue(queue, 'lease'), now + lease_ms, id)"
    ),
    "a lost turn is not given again": _of("losses", "reconcile", "  share_join_turns(queue, r.lane, r.account)\n"),
    "a lost entry is not made again": _of(
        "losses",
        "reconcile",
        "if redis.call('EXISTS', stream) == 0 then return false end",
        "if redis.call('EXISTS', stream) == 0 then return true end",
    ),
}


class Hunted(Struct, frozen=True):
    """The shortest calls that lead to a mutant's breach in its world, or the reason for none."""

    mutant: str
    world: str
    calls: tuple[str, ...] = ()
    what: str = ""
    why: str = ""


def hunt(name: str) -> Hunted:
    mutant = MUTANTS[name]
    if not mutant.world:
        return Hunted(name, "", why=mutant.why)
    breach = explore(mutant.world, WORLDS[mutant.world], edits=[mutant.edit], seconds=LONGEST_S).breach
    return Hunted(name, mutant.world, breach.calls, breach.what) if breach else Hunted(name, mutant.world)


def main(file: str) -> int:
    """Hunt all mutants, and write what was found. The exit code is 1 if one was not found and has no reason."""
    found = []
    for name in MUTANTS:
        found.append(hunt(name))
        each = found[-1]
        print(
            f"{name:<50} {each.world:<10} {len(each.calls) or '':>3}  {each.what or each.why or 'NOT FOUND'}",
            flush=True,
        )
    Path(file).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    caught = sum(bool(each.calls) for each in found)
    print(f"{caught} of {len(found)} mutants found, {sum(bool(each.why) for each in found)} named with the reason.")
    return 0 if all(each.calls or each.why for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
