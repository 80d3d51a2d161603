#!/bin/sh
# Is it the master, or connected to it and past its first copy? So a roll waits for each before it takes the next.
set -eu
set -- $(valkey-cli --no-auth-warning --user sentinel --pass "$REPLICA_PASSWORD" role)
[ "$1" = master ] || [ "${4:-}" = connected ]
