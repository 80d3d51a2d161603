#!/bin/sh
# One of three: the master where the Sentinels say so, or what the one beside it last wrote down; else its replica.
set -eu

here=$(dirname "$0")
tmp=${TMPDIR:-/tmp}
data=${DATA:-/data}
me=$(hostname).redis-nodes

named() {  # by the Sentinels of the others: that beside this one knows what is on its disk, and on a new one nothing
    for member in 0 1 2; do
        [ "redis-$member.redis-nodes" != "$me" ] || continue
        said=$(timeout 3 valkey-cli -h "redis-$member.redis-nodes" -p 26379 --no-auth-warning -a "$SENTINEL_PASSWORD" \
            sentinel get-master-addr-by-name director 2> /dev/null | head -n 1) || continue
        case $said in redis-*) echo "$said"; return ;; esac
    done
}

found=$(named)
# with an empty disk it is not the master that they mean, and the others would copy nothing: they get time to see it gone
for _ in $(seq 20); do
    [ "$found" = "$me" ] && [ ! -d "$data/appendonlydir" ] || break
    sleep 1
    found=$(named)
done
found=${found:-$(sed -n 's/^sentinel monitor director \([^ ]*\) .*/\1/p' "$data/sentinel.conf" 2> /dev/null || true)}
found=${found:-redis-0.redis-nodes}
umask 077
mkdir -p "$tmp/etc"
{
    echo "include $here/redis.conf"
    echo "masteruser replica"
    echo "masterauth $REPLICA_PASSWORD"
    echo "replica-announce-ip $me"
    # a write is refused unless one of the others had all of them at most so long ago
    echo "min-replicas-to-write 1"
    echo "min-replicas-max-lag 10"
    [ "$found" = "$me" ] || echo "replicaof $found 6379"
} > "$tmp/etc/redis.conf"
hash=$(printf %s "$REPLICA_PASSWORD" | sha256sum | cut -d ' ' -f 1)
{ cat "$here/users.acl"; sed "s/%REPLICA%/#$hash/" "$here/members.acl"; } > "$tmp/etc/users.acl"
cp "$here/start.sh" "$tmp/etc/start.sh"
exec sh "$tmp/etc/start.sh"
