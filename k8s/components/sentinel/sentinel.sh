#!/bin/sh
# A Sentinel that keeps what it has learned on its member's disk.
set -eu

. "$(dirname "$0")/members.sh"
. "$here/room.sh"
wait_for_room "${TMPDIR:-/tmp}" "$data"
conf=$data/sentinel.conf
members=$(addresses)
umask 077
if [ ! -s "$conf" ]; then
    cat > "$conf" << END
port 26379
dir ${TMPDIR:-/tmp}
sentinel monitor director @redis-0@ 6379 2
sentinel down-after-milliseconds director 5000
sentinel parallel-syncs director 1
sentinel auth-user director sentinel
END
fi
# Services that were deleted and created again have other addresses. Passwords may have changed too; `user` is what a Sentinel made of its
# own one, and would win over it
changes=$(
    former_addresses | sed -e 's/\./\\./g' -e 's|\(.*\) \(.*\)|s/ \2\\( \\\|$\\)/ @\1@\\1/|'
    echo "$members" | sed 's|\(.*\) \(.*\)|s/@\1@/\2/|'
)
own='requirepass|user default|sentinel (announce-ip|announce-hostnames|resolve-hostnames|sentinel-pass|auth-pass director|failover-timeout director)'
sed -i -e "$changes" "$conf"
sed -i -E -e "/^($own) /d" "$conf"
# During an upgrade Sentinels of manifests before 0.3.0 know a member by its name and by its address. A member that is
# listed twice is an error at the start. A replica that is the master would get the order to copy itself
awk 'NR == FNR { if ($2 == "monitor") master = $4; next }
    $2 == "known-replica" && ($4 == master || known[$4]++) { next } { print }' "$conf" "$conf" > "$conf.new"
mv "$conf.new" "$conf"
# failover-timeout: a hand-over is given up after it, and a failed attempt is repeated after twice as long
cat >> "$conf" << END
requirepass $SENTINEL_PASSWORD
sentinel announce-ip $(address_of "$me")
sentinel sentinel-pass $SENTINEL_PASSWORD
sentinel auth-pass director $REPLICA_PASSWORD
sentinel failover-timeout director 3000
END
echo "$members" > "$data/members"
sh "$here/forget.sh" $$ &
exec valkey-sentinel "$conf"
