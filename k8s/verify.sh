#!/bin/sh
# Tries an overlay on the cluster of the current context, and prints a table: sh k8s/verify.sh k8s/overlays/kind
# --helm CHART installs this chart with the values of the overlay. --json FILE writes a report for a bug: versions, nodes,
# storage classes and the table, without any secret. The overlay has one pool with one model, so not `shared`. Do not run
# this where there is work: it deletes pods of Redis, takes the pool to zero, restores a backup, and uninstalls.
set -u

usage() {
    echo "usage: sh k8s/verify.sh [--helm CHART] [--json FILE] FOLDER-OF-AN-OVERLAY" >&2
    exit 2
}

chart='' report='' overlay=''
while [ $# -gt 0 ]; do
    case $1 in
        --helm) [ $# -gt 1 ] || usage; chart=$2; shift 2 ;;
        --json) [ $# -gt 1 ] || usage; report=$2; shift 2 ;;
        -*) usage ;;
        *) [ -z "$overlay" ] || usage; overlay=$1; shift ;;
    esac
done
[ -n "$overlay" ] || usage

here=$(dirname "$0")
namespace=director
settle_s=${SETTLE_S-30}  # how long a first director is watched: an autoscaler asks every 5 s
input=${INPUT-}          # the input of a model other than the example
[ -n "$input" ] || input='{"text": "verify"}'
temporary=$(mktemp -d)   # only its owner may enter: the token is in it
table=$temporary/table
rows=$temporary/rows
: > "$table"
: > "$rows"
failed=0
skipped=75
child='' guard='' loading='' cordoned='' paused='' name='' was_there='' pool='' model='' at='' why='' note=''

clean_up() {  # after an interrupt too: nothing runs on, no node stays cordoned, no pool paused, no token valid
    [ "$(exec sh -c 'echo $PPID')" = $$ ] || return  # bash: a subshell that ends just after its start runs this too
    end_child
    [ -z "$loading" ] || kill "$loading" 2> /dev/null
    [ -z "$cordoned" ] || may uncordon "$cordoned" > /dev/null
    [ -z "$paused" ] || unpause > /dev/null
    [ ! -s "$temporary/token" ] || revoke > /dev/null 2>&1
    if [ -n "$report" ] && [ -n "$name" ]; then
        add_row 130 interrupted
        write_report > "$report"
    fi
    rm -rf "$temporary"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Commands

end_child() {
    [ -z "$child" ] || kill "$child" "$guard" 2> /dev/null
    child='' guard=''
}

within() {  # SECONDS COMMAND…: nothing is waited for without an end. No `timeout`, which macOS lacks
    seconds=$1
    shift
    # A shell lets what it starts in the background ignore an interrupt. A subshell has none of the traps above
    trap 'end_child; exit 130' INT TERM
    exec 3<&0
    "$@" <&3 3<&- &
    child=$!
    (
        while [ "$seconds" -gt 0 ] && kill -0 "$child"; do
            sleep 1
            seconds=$((seconds - 1))
        done
        kill "$child"
    ) > /dev/null 2>&1 3<&- &
    guard=$!
    exec 3<&-
    wait "$child"
    ended=$?
    kill "$guard" 2> /dev/null
    wait "$guard" 2> /dev/null
    child='' guard=''
    return $ended
}

k() {  # keeps in $at what failed, without names of nodes and without the words after it
    case $1 in exec | rollout | wait | drain | delete) limit=3700 ;; *) limit=300 ;; esac
    within "$limit" kubectl -n "$namespace" "$@"
    ended=$?
    [ $ended = 0 ] || case "$1 ${2-}" in
        'exec -i') at="exec $3" ;;
        exec*) at="exec $2" ;;
        drain* | uncordon*) at=$1 ;;
        *) at="$1 ${2-} ${3-}" ;;
    esac
    return $ended
}

may() {  # a command that is allowed to fail
    within 60 kubectl "$@" 2> /dev/null
}

try() {  # NAME COMMAND…
    name=$1
    shift
    began=$(date +%s)
    at='' why='' note=''
    echo "== $name" >&2
    "$@" >&2
    code=$?
    case $code in
        0) add_row 0 passed ;;
        "$skipped") add_row "$code" "skipped: $why" ;;
        *) failed=1 why=${why:-$at}; add_row "$code" FAILED ;;
    esac
    name=''
}

add_row() {  # CODE RESULT
    took=$(($(date +%s) - began))
    printf '%-40s %-24s %5s s\n' "$name" "$2" "$took" >> "$table"
    [ -z "$note" ] || echo "    $note" >> "$table"
    pods=''
    [ "$2" != FAILED ] || pods=$(may -n "$namespace" get pods -o "jsonpath={range .items[*]}$of_pod$end" | list_strings)
    printf '{"name": %s, "rc": %s, "seconds": %s, "said": %s, "at": %s, "note": %s, "pods": [%s]}\n' \
        "$(quote "$name")" "$1" "$took" "$(quote "$2")" "$(quote "$why")" "$(quote "$note")" "$pods" >> "$rows"
}

quote() {  # a text as JSON
    printf '"%s"' "$(printf %s "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g')"
}

# Steps

put() {  # and keep what it prints in $temporary/put
    sh "$here/secrets.sh" "$overlay" || return 1
    k apply -f "$overlay/kept.yaml" || return 1
    if [ -n "$chart" ]; then
        at="helm upgrade"
        within 600 helm upgrade --install director "$chart" -n "$namespace" -f "$overlay/values.yaml" \
            --set-file "secrets.env=$overlay/secrets.env" --take-ownership --force-conflicts > "$temporary/put"
    else
        k apply -k "$overlay" > "$temporary/put"
    fi
    code=$?
    cat "$temporary/put"
    return $code
}

wait_until_ready() {
    pool=$(k get deployment -l app.kubernetes.io/component=director -o name | head -n 1)
    k rollout status statefulset/redis --timeout 15m && k rollout status deployment/api --timeout 10m &&
        k rollout status deployment/keeper --timeout 10m && k rollout status "$pool" --timeout 60m
}

install() {
    was_there=$(may -n "$namespace" get scaledobject -o 'jsonpath={.items[*].metadata.creationTimestamp}')
    put && wait_until_ready || return 1
    of_pool='{range .spec.template.spec.containers[?(@.name=="director")].envFrom[*]}{.configMapRef.name}{"\n"}{end}'
    for map in $(k get "$pool" -o "jsonpath=$of_pool"); do  # the pool may be at zero, without a pod to ask
        model=$model$(k get configmap "$map" -o 'jsonpath={.data.DIRECTOR_MODEL}')
    done
    [ -n "$model" ] || { why='no DIRECTOR_MODEL: the overlay has no pool with one model'; return 1; }
    k exec deploy/api -c api -- director token create --account verify | tail -n 1 > "$temporary/token"
    [ -s "$temporary/token" ] || { why='no token'; return 1; }
}

revoke() {
    within 60 kubectl -n "$namespace" exec -i deploy/api -c api -- director token revoke < "$temporary/token"
}

has_autoscaler() {
    [ -n "$(may -n "$namespace" get scaledobject -o name)" ] || { why='no KEDA'; return 1; }
}

pause() {  # REPLICAS: KEDA leaves the pool at these
    may -n "$namespace" annotate scaledobject --all "autoscaling.keda.sh/paused-replicas=$1" --overwrite || return 0
    paused=yes
}

unpause() {
    may -n "$namespace" annotate scaledobject --all autoscaling.keda.sh/paused-replicas-
    paused=''
}

empty_pool() {  # its directors finish what they run
    pause 0
    k scale "$pool" --replicas 0 && k wait --for delete pod -l app.kubernetes.io/component=director --timeout 35m
}

watch_first() {  # the first director, which has had no work yet
    has_autoscaler || return "$skipped"
    [ -z "$was_there" ] || { why='not a first install'; return "$skipped"; }
    until_s=$(($(date +%s) + settle_s))
    while [ "$(date +%s)" -lt "$until_s" ]; do
        number=$(k get "$pool" -o 'jsonpath={.status.readyReplicas}')
        [ "${number:-0}" -gt 0 ] || { why='the first director has ended'; return 1; }
        sleep 2
    done
}

predict() {  # it ends within the hour that a node, an image and a setup may take
    k exec -i deploy/api -c api -- python -c "$client" http://127.0.0.1:8080 "$model" "$input" 1 0 < "$temporary/token"
}

start_load() {  # POD CONTAINER URL COUNT SECONDS: creates, until `end_load` if COUNT is 0, with no longer pause between two
    : > "$temporary/load"
    : > "$temporary/loading"
    feed_token | k exec -i "$1" -c "$2" -- python -c "$client" "$3" "$model" "$input" "$4" "$5" > "$temporary/load" &
    loading=$!
    while kill -0 "$loading" 2> /dev/null && ! grep -q accepted "$temporary/load"; do
        sleep 1
    done
}

feed_token() {  # and no end of the input, which ends a load
    cat "$temporary/token"
    while [ -e "$temporary/loading" ]; do
        sleep 1
    done
}

end_load() {
    rm "$temporary/loading"
    wait "$loading"
    code_of_load=$?
    loading=''
    note=$(tail -n 1 "$temporary/load")
    [ $code_of_load = 0 ] || why="the load: ${note:-no answer}"
    return $code_of_load
}

client='
import json, sys, threading, time, urllib.request, uuid
base, model, given, count, pause_s = sys.argv[1:]
token, count, pause_s, until = sys.stdin.readline().strip(), int(count), float(pause_s), time.monotonic() + 3600
head = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
body, ids, ended = json.dumps({"input": json.loads(given)}).encode(), [], threading.Event()

def answer(path, data=None, **more):
    """Repeat a request until it is accepted: with its key that is safe."""
    while time.monotonic() < until:
        asked = urllib.request.Request(base + path, data, head | more)
        try:
            return json.load(urllib.request.urlopen(asked, timeout=10))
        except (OSError, ValueError) as exc:
            if 400 <= getattr(exc, "code", 500) < 500 and exc.code != 429:
                sys.exit(f"refused: {exc.code}")
            print("repeated:", exc, file=sys.stderr)
            time.sleep(0.5)
    sys.exit("no answer in time")

def watch():
    sys.stdin.read()
    ended.set()

threading.Thread(target=watch, daemon=True).start()
longest_s, last = 0.0, time.monotonic()
while not ids or (len(ids) < count if count else not ended.is_set()):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    ids.append(answer(f"/v1/models/{model}/predictions", body, **key)["id"])
    now = time.monotonic()
    longest_s, last = max(longest_s, now - last), now
    if len(ids) == 1:
        print("accepted", flush=True)
    if len(ids) != count:
        ended.wait(1)
ends = dict.fromkeys(ids, "")
while time.monotonic() < until and not all(ends.values()):
    for one in [one for one, end in ends.items() if not end]:
        status = answer(f"/v1/predictions/{one}")["status"]
        ends[one] = status if status not in ("starting", "processing") else ""
    time.sleep(0.5)
good = list(ends.values()).count("succeeded")
print(f"{len(ids)} accepted, {good} succeeded, {longest_s:.1f} s without an accept at most")
sys.exit(good < len(ids) or 0 < pause_s < longest_s)
'

apply_again() {  # no workload gets another template, and kubectl calls nothing `configured`
    templates() {
        k get deployment,statefulset -o 'jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.annotations.deployment\.kubernetes\.io/revision}{.status.updateRevision}{"\n"}{end}'
    }
    before=$(templates)
    put || return 1
    [ "$(templates)" = "$before" ] || { why='a workload has another template'; return 1; }
    [ -z "$chart" ] || return 0
    # kubectl always sends the selector of a disruption budget, and the long Secrets of before 0.4.0
    ! grep -v -e ' unchanged' -e '^poddisruptionbudget' -e '^secret/' "$temporary/put" || { why='not unchanged'; return 1; }
    ! grep -q '^secret/.* configured' "$temporary/put" || note='Secrets of before 0.4.0 are configured each time'
}

renew_pool() {  # of a pool that runs as root the next pod is the one that a namespace refuses
    k rollout restart "$pool" && k rollout status "$pool" --timeout 60m && predict
}

roll() {  # API and keepers, while a director's pod sends creates through the Service
    start_load "$pool" director http://api:8080 0 10
    k rollout restart deployment/api && k rollout status deployment/api --timeout 10m &&
        k rollout restart deployment/keeper && k rollout status deployment/keeper --timeout 10m
    code=$?
    end_load || code=1
    return $code
}

roll_redis() {
    [ "$(count_members)" = 3 ] || { why='one Redis'; return "$skipped"; }
    start_load deploy/api api http://127.0.0.1:8080 0 10
    k rollout restart statefulset/redis && k rollout status statefulset/redis --timeout 15m
    code=$?
    end_load || code=1
    return $code
}

go_to_zero() {  # and back by KEDA, which has seen work then, or by hand
    empty_pool || return 1
    start_load deploy/api api http://127.0.0.1:8080 1 0
    unpause
    has_autoscaler || k scale "$pool" --replicas 1
    end_load && why=''
}

wait_for_zero() {  # by KEDA itself, once nothing waits for its cooldownPeriod, and from it for one prediction
    has_autoscaler || return "$skipped"
    k wait --for delete pod -l app.kubernetes.io/component=director --timeout 30m && predict
}

drain_node() {
    # one line a node: empty for a node that takes any pod
    number=$(k get nodes -o 'jsonpath={range .items[*]}{.spec.unschedulable}{.spec.taints[*].effect}{"\n"}{end}' |
        grep -v -c -e true -e NoSchedule -e NoExecute)
    [ "$number" -gt 1 ] || { why='one node'; return "$skipped"; }
    cordoned=$(k get pod -l app.kubernetes.io/component=api -o 'jsonpath={.items[0].spec.nodeName}')
    k drain "$cordoned" --ignore-daemonsets --delete-emptydir-data --timeout 40m &&
        k rollout status deployment/api --timeout 10m && k rollout status "$pool" --timeout 60m && predict
    code=$?
    k uncordon "$cordoned" && cordoned=''
    return $code
}

count_members() {
    k get statefulset redis -o 'jsonpath={.spec.replicas}'
}

admin='REDISCLI_AUTH=$ADMIN_PASSWORD valkey-cli --user admin'

find_master() {
    for member in redis-0 redis-1 redis-2; do
        [ "$(k exec $member -c redis -- sh -c "$admin role" | head -n 1)" != master ] || echo $member
    done
}

delete_master() {  # the master is lost without a word. One that is back before Sentinels act stays the master
    [ "$(count_members)" = 3 ] || { why='one Redis'; return "$skipped"; }
    master=$(find_master)
    [ -n "$master" ] || { why='no member is the master'; return 1; }
    start_load deploy/api api http://127.0.0.1:8080 0 15
    k delete pod "$master" --force --grace-period 0 && sleep "$settle_s" && k rollout status statefulset/redis --timeout 15m
    code=$?
    end_load || code=1
    next=$(find_master)
    case $next in
        redis-?) note="$note; $next is the master after $master" ;;
        *) code=1 why="masters: ${next:-none}" ;;
    esac
    return $code
}

back_up_and_restore() {
    [ "$(count_members)" != 3 ] || { why='three Redis'; return "$skipped"; }
    k exec redis-0 -c redis -- sh /etc/redis/copy.sh > "$temporary/director.rdb" &&
        k exec redis-0 -c redis -- sh -c "$admin set contact:verify later" &&
        k scale statefulset redis --replicas 0 && k wait --for delete pod/redis-0 --timeout 180s &&
        k apply -f "$here/restore-pod.yaml" && k wait --for condition=Ready pod/restore --timeout 5m &&
        k exec -i restore -- sh -c 'cd /data && cat > new.rdb && valkey-check-rdb new.rdb && rm -rf appendonlydir && mkdir appendonlydir && mv new.rdb appendonlydir/appendonly.aof.1.base.rdb && echo "file appendonly.aof.1.base.rdb seq 1 type b" > appendonlydir/appendonly.aof.manifest' < "$temporary/director.rdb" &&
        k delete pod restore && k scale statefulset redis --replicas 1 && k rollout status statefulset/redis --timeout 15m &&
        k rollout status deployment/api --timeout 10m &&
        [ "$(k exec redis-0 -c redis -- sh -c "$admin exists contact:verify")" = 0 ] && predict
}

uninstall() {  # and install again: the token of before is in Redis
    empty_pool || return 1
    if [ -n "$chart" ]; then
        at="helm uninstall"
        within 600 helm uninstall director -n "$namespace" || return 1
    else
        k delete -k "$overlay" --timeout 40m || return 1
    fi
    paused=''
    k wait --for delete pod --all --timeout 40m && k get pvc data-redis-0 && put && wait_until_ready && predict
}

# The table, and the report

of_node='{.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion} {.status.nodeInfo.osImage}'
of_node="$of_node {.status.nodeInfo.architecture} {.status.allocatable.cpu} {.status.allocatable.memory}"
of_class='{.metadata.name} {.provisioner} {.reclaimPolicy} {.volumeBindingMode}'
of_pod='{.metadata.name} {.status.phase} {.status.reason} {.status.conditions[*].reason}'
of_pod="$of_pod {.status.initContainerStatuses[*].state.waiting.reason} {.status.containerStatuses[*].state.waiting.reason}"
end='{"\n"}{end}'

list_strings() {  # each line as an element of JSON
    between=''
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        printf '%s%s' "$between" "$(quote "$line")"
        between=', '
    done
}

write_report() {
    echo '{'
    printf '"at": %s, "overlay": %s, "by": "%s",\n' "$(quote "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" \
        "$(quote "$(basename "$overlay")")" "$([ -n "$chart" ] && echo helm || echo kustomize)"
    printf '"versions": [%s],\n' "$({ may version; [ -z "$chart" ] || within 60 helm version --short; } | list_strings)"
    printf '"images": [%s],\n' "$(may -n "$namespace" get deployment,statefulset \
        -o "jsonpath={range .items[*].spec.template.spec.containers[*]}{.image}$end" | sort -u | list_strings)"
    printf '"nodes": [%s],\n' "$(may get nodes -o "jsonpath={range .items[*]}$of_node$end" | list_strings)"
    printf '"storage_classes": [%s],\n' "$(may get storageclass -o "jsonpath={range .items[*]}$of_class$end" | list_strings)"
    printf '"daemonsets": [%s],\n' "$(may -n kube-system get daemonset -o name | list_strings)"
    printf '"keda": [%s],\n' "$(may -n keda get deployment -o "jsonpath={range .items[*].spec.template.spec.containers[*]}{.image}$end" | list_strings)"
    printf '"rows": [\n%s\n]\n}\n' "$(sed '$!s/$/,/' "$rows")"
}

finish() {
    cat "$table"
    [ -z "$report" ] || write_report > "$report"
    exit $failed
}

try "apply" install
[ $failed = 0 ] || finish
try "the first director stays" watch_first
try "a prediction" predict
try "a second apply changes nothing" apply_again
try "a new pod of the pool" renew_pool
try "API and keepers rolled under load" roll
try "three Redis rolled under load" roll_redis
try "to zero and back" go_to_zero
try "to zero and back by KEDA" wait_for_zero
try "a drained node" drain_node
try "the master deleted by force" delete_master
try "a backup, and its restore" back_up_and_restore
try "uninstall keeps the data" uninstall
finish
