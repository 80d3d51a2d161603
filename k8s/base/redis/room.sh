# Sourced by what starts a server. Without room a server ends at its first write. It waits here instead of starting in
# vain: between its starts the kubelet waits for up to 5 minutes, also when there is room again.
has_room() {
    head -c 1048576 /dev/zero > "$1/.room" && found=0 || found=1
    rm -f "$1/.room"
    [ $found = 0 ] || echo "waiting for 1 MiB of room in $1" >&2
    return $found
}

wait_for_room() {  # in each of these folders
    for folder in "$@"; do
        until has_room "$folder"; do sleep 1; done
    done
}
