# Sourced by the scripts of a member. Its Service gives each member an address that stays as pods come and go. It is
# looked up at the start and never again. A Sentinel asks for a name in its only thread, and a look-up of more than 2 s
# keeps it from acting for 30 s (TILT). While half of the look-ups stalled for 5 s, a failover took 80.7 s.
trap 'exit 143' TERM  # the first process of a container gets no signal that it does not ask for
here=$(dirname "$0")
data=${DATA:-/data}
me=$(hostname)

addresses() {  # "NAME ADDRESS" of each member: by DNS, because /etc/hosts has this pod's own address, which ends with it
    for name in redis-0 redis-1 redis-2; do
        until found=$(getent -s dns hosts "$name"); do sleep 1; done
        echo "$name ${found%% *}"
    done
}

former_addresses() {  # those that are in sentinel.conf: names, if manifests before 0.3.0 wrote it
    cat "$data/members" 2> /dev/null || printf '%s\n' redis-0 redis-1 redis-2 | sed 's/.*/& &.redis-nodes/'
}

address_of() {  # of a member, or of a pod that announces itself by its own address
    echo "$members" | awk -v name="$1" '$1 == name { at = $2 } END { print at ? at : name }'
}

role_at() {  # of the server at this address: a line for each part of the answer
    timeout 3 valkey-cli -h "$1" --no-auth-warning --user sentinel --pass "$REPLICA_PASSWORD" role 2> /dev/null
}

others() {
    echo "$members" | sed -e "/^$me /d" -e 's/ .*//'
}

ask_sentinel() {  # of the member $1 the commands on standard input
    timeout 3 valkey-cli -h "$(address_of "$1")" -p 26379 --no-auth-warning -a "$SENTINEL_PASSWORD" 2> /dev/null
}
