#!/bin/sh
# One of three: the master of the newest failover that a member knows of, or its replica.
set -eu

. "$(dirname "$0")/members.sh"
tmp=${TMPDIR:-/tmp}

# After a forced delete the next pod starts on the same disk while the former one still hands over. Two servers would
# write one log. The lock is held until the server ends, whose process this shell becomes
exec 9< "$data"
until flock -n 9; do
    [ $? = 1 ] || break  # a file system without locks
    sleep 1
done
former=$(former_addresses)  # before sentinel.conf is read: the Sentinel beside this server renews this file last
members=$(addresses)

# The disk has no log that is whole, and what the master has is not on it yet. In this folder, so that a restored one has
# no such file
filling=$data/appendonlydir/filling
[ -e "$data/appendonlydir/appendonly.aof.manifest" ] || { mkdir -p "$data/appendonlydir" && : > "$filling"; }

known_masters() {  # "EPOCH ADDRESS": what the others' Sentinels say, then what the one beside this server wrote down
    for other in $(others); do
        printf '%s\n' 'sentinel get-master-addr-by-name director' 'sentinel master director' | ask_sentinel "$other" |
            awk 'NR == 1 { at = $1 } last == "config-epoch" { epoch = $1 } { last = $1 } END { print epoch + 0, at }'
    done
    awk '$2 == "monitor" { at = $4 } $2 == "config-epoch" { epoch = $4 } END { print epoch + 0, at }' \
        "$data/sentinel.conf" 2> /dev/null || true
}

newest_master() {
    known_masters | sort -s -r -n -k 1,1 | while read -r _ at; do
        name=$(printf '%s\n' "$members" "$former" | awk -v at="${at%.redis-nodes}" '$1 == at || $2 == at { print $1; exit }')
        # manifests of 0.3.0 announce the pod's address
        [ -n "$name" ] || [ -z "$at" ] || [ "$(role_at "$at" | head -n 1)" != master ] || name=$at
        [ -z "$name" ] || { echo "$name"; break; }
    done
}

hold_nothing() {  # all others answer, have read their logs, and have no key: this is the very first start
    for other in $(others); do
        said=$(timeout 3 valkey-cli -h "$(address_of "$other")" --no-auth-warning --user sentinel \
            --pass "$REPLICA_PASSWORD" info 2> /dev/null) || return 1
        case $said in *loading:1* | *db[0-9]*:keys=*) return 1 ;; *loading:0*) ;; *) return 1 ;; esac
    done
}

# Replicas copy what their master has, be it nothing. So a master that lost its disk does not start as the master
master=$(newest_master)
while [ -e "$filling" ] && [ "${master:-redis-0}" = "$me" ]; do
    if hold_nothing; then
        rm "$filling"
        break
    fi
    echo "The disk is empty. Waiting for another master, or until the others show that they hold nothing." >&2
    sleep 1
    master=$(newest_master)
done
master=${master:-redis-0}

umask 077
mkdir -p "$tmp/etc"
{
    echo "include $here/redis.conf"
    echo "masteruser replica"
    echo "masterauth $REPLICA_PASSWORD"
    echo "replica-announce-ip $(address_of "$me")"
    echo "repl-diskless-sync-delay 0"  # 5 s by default, in which a master that starts again refuses every write
    # a write is refused unless one of the others had all of them at most so long ago
    echo "min-replicas-to-write 1"
    echo "min-replicas-max-lag 10"
    [ "$master" = "$me" ] || echo "replicaof $(address_of "$master") 6379"
    [ ! -e "$filling" ] || echo "replica-priority 0"  # Sentinels do not choose it
} > "$tmp/etc/redis.conf"
hash=$(printf %s "$REPLICA_PASSWORD" | sha256sum | cut -d ' ' -f 1)
{ cat "$here/users.acl"; sed "s/%REPLICA%/#$hash/" "$here/members.acl"; } > "$tmp/etc/users.acl"
cp "$here/start.sh" "$here/room.sh" "$tmp/etc/"
if [ -e "$filling" ]; then
    (
        until sh "$here/caught-up.sh"; do
            kill -0 $$ || exit  # this shell becomes the server
            sleep 1
        done 2> /dev/null
        valkey-cli --no-auth-warning --user admin --pass "$ADMIN_PASSWORD" config set replica-priority 100
        rm "$filling"
    ) &
fi
exec sh "$tmp/etc/start.sh"
