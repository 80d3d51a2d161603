#!/bin/sh
# Waits for room on its disks, puts the passwords into the list of users, as hashes, and becomes the server.
set -eu

hashes() {
    for password in "$@"; do
        [ -z "$password" ] || printf '#%s ' "$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)"
    done
}

# A server without room ends at its first write. It waits here instead of starting in vain: between its starts the
# kubelet waits for up to 5 minutes, also when there is room again.
has_room() {
    head -c 1048576 /dev/zero > "$1/.room" && found=0 || found=1
    rm -f "$1/.room"
    [ $found = 0 ] || echo "waiting for 1 MiB of room in $1" >&2
    return $found
}

here=$(dirname "$0")
tmp=${TMPDIR:-/tmp}
users=$tmp/users.acl
umask 077
trap 'exit 143' TERM  # as process 1 of its container the shell ignores it otherwise, and a stop takes 2 minutes
until has_room "$tmp" && has_room "${DATA:-/data}"; do
    sleep 1
done
sed -e '/^#/d' -e '/^$/d' \
    -e "s/%DIRECTOR%/$(hashes "$REDIS_PASSWORD" "${REDIS_PASSWORD_FORMER:-}")/" \
    -e "s/%API%/$(hashes "${API_REDIS_PASSWORD:-}" "${API_REDIS_PASSWORD_FORMER:-}")/" \
    -e "s/%KEEPER%/$(hashes "${KEEPER_REDIS_PASSWORD:-}" "${KEEPER_REDIS_PASSWORD_FORMER:-}")/" \
    -e "s/%RUN%/$(hashes "${RUN_REDIS_PASSWORD:-}" "${RUN_REDIS_PASSWORD_FORMER:-}")/" \
    -e "s/%KEDA%/$(hashes "$KEDA_PASSWORD")/" \
    -e "s/%BACKUP%/$(hashes "${BACKUP_PASSWORD:-}")/" \
    -e "s/%ADMIN%/$(hashes "$ADMIN_PASSWORD")/" \
    "$here/users.acl" > "$users"
exec valkey-server "$here/redis.conf" --aclfile "$users" "$@"
