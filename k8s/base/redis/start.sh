#!/bin/sh
# Waits for room on its disks, puts the passwords into the list of users, as hashes, and becomes the server.
set -eu

hashes() {
    for password in "$@"; do
        [ -z "$password" ] || printf '#%s ' "$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)"
    done
}

here=$(dirname "$0")
. "$here/room.sh"
tmp=${TMPDIR:-/tmp}
users=$tmp/users.acl
umask 077
trap 'exit 143' TERM  # as process 1 of its container the shell ignores it otherwise, and a stop takes 2 minutes
wait_for_room "$tmp" "${DATA:-/data}"
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
