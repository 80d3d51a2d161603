#!/bin/sh
# Runs before a member ends. If it is the master, another member becomes it first: writes pause until that one has
# all of them. The Sentinel beside this server is ending too, so another one is asked.
set -eu

. "$(dirname "$0")/members.sh"
members=$(former_addresses)  # no look-up: it may stall until the grace time is over
ask() {
    valkey-cli --no-auth-warning --user sentinel --pass "$REPLICA_PASSWORD" "$@"
}

is_master() {
    [ "$(ask role | head -n 1)" = master ]
}

third_follows() {  # does the new master have the other member too? It refuses writes while it has no replica
    role_at "$(ask role | sed -n 2p)" | awk -v me="$(address_of "$me")" 'NR > 2 && (NR - 3) % 3 == 0 && $1 != me { found = 1 } END { exit !found }'
}

for other in $(others); do
    is_master || exit 0
    [ "$(echo 'sentinel failover director coordinated' | ask_sentinel "$other")" = OK ] || continue
    for _ in $(seq 30); do  # longer than a Sentinel tries: failover-timeout
        if ! is_master; then
            # the Sentinel's pause would hold callers here, until they give up
            ask client unpause > /dev/null || exit 0
            for _ in $(seq 20); do
                if third_follows; then break; fi
                sleep 0.2
            done
            sleep 2  # callers leave. Once this pod's address is gone, each that still comes waits for a time-out
            exit 0
        fi
        sleep 0.2
    done
done
