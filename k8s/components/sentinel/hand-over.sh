#!/bin/sh
# Runs before a member ends. If it is the master, another member becomes it first: writes pause until that one has
# all of them. The Sentinel beside this server is ending too, so another one is asked.
set -eu

. "$(dirname "$0")/members.sh"
members=$(former_addresses)  # no look-up: it may stall until the grace time is over
role() {
    valkey-cli --no-auth-warning --user sentinel --pass "$REPLICA_PASSWORD" role | head -n 1
}

for other in $(others); do
    [ "$(role)" = master ] || exit 0
    [ "$(echo 'sentinel failover director coordinated' | ask_sentinel "$other")" = OK ] || continue
    for _ in $(seq 15); do
        [ "$(role)" = master ] || exit 0
        sleep 1
    done
done
