#!/bin/sh
# Runs beside a Sentinel. Manifests of 0.3.0 announced the address of a pod, which ends with the pod. A Sentinel never
# forgets a replica by itself, and goes on connecting to it. So it is reset once it lists one that does not answer and has
# no member's address, and knows all three members besides. It finds those again within 10 s, in which it takes no part
# in a failover. So members take turns, by the clock.
set -eu

. "$(dirname "$0")/members.sh"
members=$(former_addresses)

listed() {  # "ADDRESS FLAGS" of the master and of each replica
    printf '%s\n' 'sentinel master director' 'sentinel replicas director' | ask_sentinel "$me" |
        awk 'last == "ip" { at = $1 } last == "flags" { print at, $1 } { last = $1 }'
}

while sleep 4; do
    kill -0 "$1" || exit 0
    [ $(($(date +%s) / 5 % 9)) = $((${me#redis-} * 3)) ] || continue
    printf '%s\n' "$members" - "$(listed)" | awk '
        $1 == "-" { listed = 1; next }
        !listed { member[$2] = 1; next }
        $1 in member && $2 !~ /down|disconnected|failover/ { here++; next }
        !($1 in member) && $2 ~ /s_down/ { gone = 1 }
        END { exit !(gone && here == 3) }' || continue
    echo "resetting: a replica is listed whose address no member has" >&2
    echo 'sentinel reset director' | ask_sentinel "$me" > /dev/null
done
