#!/bin/sh
# A Sentinel watches the server beside it as all others do: by the address of its Service. Not every network brings a pod's
# packets back to it (hairpin). Where none does, no failover came after the first hand-over. So such a member is not ready.
set -eu

. "$(dirname "$0")/members.sh"
members=$(former_addresses)
timeout 3 valkey-cli -h "$(address_of "$me")" --no-auth-warning --user probe --pass any ping | grep -q PONG || {
    echo "$me is not reached by itself at its Service: the network needs hairpin traffic, or the server is away"
    exit 1
}
