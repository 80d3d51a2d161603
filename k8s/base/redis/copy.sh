#!/bin/sh
# Writes all that Redis holds to standard output, as a replica gets it: a file in the format RDB. First to the disk, since
# valkey-cli leaves a mark of 40 bytes at the end of what it writes to standard output.
set -eu

copy=${DATA:-/data}/copy.rdb
trap 'rm -f "$copy"' EXIT
REDISCLI_AUTH=$BACKUP_PASSWORD valkey-cli --user backup --rdb "$copy" >&2
valkey-check-rdb "$copy" >&2
cat "$copy"
