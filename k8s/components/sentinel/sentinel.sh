#!/bin/sh
# A Sentinel that keeps what it has learned on its member's disk.
set -eu

data=${DATA:-/data}
conf=$data/sentinel.conf
umask 077
if [ ! -s "$conf" ]; then
    cat > "$conf" << END
port 26379
dir ${TMPDIR:-/tmp}
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $(hostname).redis-nodes
sentinel monitor director redis-0.redis-nodes 6379 2
sentinel down-after-milliseconds director 5000
sentinel failover-timeout director 30000
sentinel parallel-syncs director 1
sentinel auth-user director sentinel
END
fi
# passwords may have changed since; `user` is what it made of its own one, and would win over it
sed -i -e '/^requirepass /d' -e '/^user default /d' -e '/^sentinel sentinel-pass /d' -e '/^sentinel auth-pass director /d' "$conf"
cat >> "$conf" << END
requirepass $SENTINEL_PASSWORD
sentinel sentinel-pass $SENTINEL_PASSWORD
sentinel auth-pass director $REPLICA_PASSWORD
END
exec valkey-sentinel "$conf"
