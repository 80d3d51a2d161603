#!/bin/sh
# Tries an overlay on the cluster of the current context, and prints a table: sh k8s/verify.sh k8s/overlays/kind
# --helm CHART installs this chart with the values of the overlay. --json FILE writes a report for a bug: versions, nodes,
# storage classes and the table, without any secret. The overlay has one pool. Do not run this where there is work: it
# deletes pods of Redis, takes the pool to zero, restores a backup, and uninstalls.
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
input=${INPUT-}          # of a model other than the example
[ -n "$input" ] || input='{"text": "verify"}'
temporary=$(mktemp -d)
table=$temporary/table
rows=$temporary/rows
: > "$table"
: > "$rows"
failed=0
skipped=75
cordoned='' loading='' pool='' model='' token='' at='' why=''

left() {  # also after an interrupt: no node stays cordoned, and nothing goes on in the background
    [ -z "$loading" ] || kill "$loading" 2> /dev/null
    [ -z "$cordoned" ] || kubectl uncordon "$cordoned" > /dev/null 2>&1
    rm -rf "$temporary"
}
trap left EXIT
trap 'exit 130' INT TERM

# Commands

within() {  # SECONDS COMMAND…: nothing is waited for without an end. No `timeout`, which macOS lacks
    seconds=$1
    shift
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
    return $ended
}

k() {  # keeps in $at what failed, without the words after it: they may be a token
    case $1 in exec | rollout | wait | drain | delete) limit=3700 ;; *) limit=300 ;; esac
    within "$limit" kubectl -n "$namespace" "$@"
    ended=$?
    [ $ended = 0 ] || case $1 in exec) at="exec $2" ;; *) at="$1 ${2-} ${3-}" ;; esac
    return $ended
}

may() {  # a command that is allowed to fail
    within 300 kubectl "$@" 2> /dev/null
}

try() {  # NAME COMMAND…
    name=$1
    shift
    began=$(date +%s)
    at='' why=''
    echo "== $name" >&2
    "$@" >&2
    code=$?
    case $code in
        0) said=passed ;;
        "$skipped") said="skipped: $why" ;;
        *) said="FAILED" failed=1 why=${why:-$at} ;;
    esac
    took=$(($(date +%s) - began))
    printf '%-40s %-24s %5s s\n' "$name" "$said" "$took" >> "$table"
    printf '{"name": %s, "rc": %s, "seconds": %s, "said": %s, "at": %s}\n' \
        "$(quoted "$name")" "$code" "$took" "$(quoted "$said")" "$(quoted "$why")" >> "$rows"
}

quoted() {  # a text as JSON
    printf '"%s"' "$(printf %s "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g')"
}

# Steps

put() {  # and keep what is said in $temporary/put
    sh "$here/secrets.sh" "$overlay" || return 1
    k apply -f "$overlay/kept.yaml" || return 1
    if [ -n "$chart" ]; then
        at="helm upgrade"
        within 600 helm upgrade --install director "$chart" -n "$namespace" -f "$overlay/values.yaml" \
            --set-file "secrets.env=$overlay/secrets.env" --take-ownership --force-conflicts > "$temporary/put"
    else
        k apply -k "$overlay" > "$temporary/put"
    fi
    done=$?
    cat "$temporary/put"
    return $done
}

ready() {
    pool=$(k get deployment -l app.kubernetes.io/component=director -o name | head -n 1)
    k rollout status statefulset/redis --timeout 15m && k rollout status deployment/api --timeout 10m &&
        k rollout status deployment/keeper --timeout 10m && k rollout status "$pool" --timeout 60m
}

applied() {
    put && ready
}

has_autoscaler() {
    [ -n "$(may -n "$namespace" get scaledobject -o name)" ] || { why='no KEDA'; return 1; }
}

stayed() {  # the first director, which has had no work yet
    has_autoscaler || return "$skipped"
    until_s=$(($(date +%s) + settle_s))
    while [ "$(date +%s)" -lt "$until_s" ]; do
        [ "$(k get "$pool" -o 'jsonpath={.status.readyReplicas}')" -gt 0 ] || { why='the first director has ended'; return 1; }
        sleep 2
    done
}

predicted() {  # it ends within the hour that a node, an image and a setup may take
    k exec deploy/api -c api -- python -c "$client" http://127.0.0.1:8080 "$model" "$input" 1 3600 "$token"
}

client='
import json, sys, time, urllib.request, uuid
base, model, given, count, limit_s, token = sys.argv[1:]
head = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
body, until, ids = json.dumps({"input": json.loads(given)}).encode(), time.monotonic() + float(limit_s), []

def answer(path, data=None, **more):
    """Repeat a request until it is accepted: with its key that is safe."""
    while time.monotonic() < until:
        asked = urllib.request.Request(base + path, data, head | more)
        try:
            return json.load(urllib.request.urlopen(asked, timeout=90))
        except (OSError, ValueError) as exc:
            if 400 <= getattr(exc, "code", 500) < 500 and exc.code != 429:
                sys.exit(f"refused: {exc.code}")
            print("repeated:", exc, file=sys.stderr)
            time.sleep(1)
    sys.exit("no answer in time")

for _ in range(int(count)):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    ids.append(answer(f"/v1/models/{model}/predictions", body, **key)["id"])
    time.sleep(0.5 if len(ids) < int(count) else 0)
ends = dict.fromkeys(ids, "")
while time.monotonic() < until and not all(ends.values()):
    for one in [one for one, end in ends.items() if not end]:
        status = answer(f"/v1/predictions/{one}")["status"]
        ends[one] = status if status not in ("starting", "processing") else ""
    time.sleep(0.5)
print(len(ids), "accepted,", list(ends.values()).count("succeeded"), "succeeded")
sys.exit(set(ends.values()) != {"succeeded"})
'

unchanged() {  # no workload is rolled, and kubectl calls nothing `configured`. It always does so of disruption budgets
    generations() {
        k get deployment,statefulset -o 'jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.generation}{"\n"}{end}'
    }
    before=$(generations)
    put || return 1
    [ "$(generations)" = "$before" ] || { why='a workload has another generation'; return 1; }
    [ -n "$chart" ] || ! grep -v -e ' unchanged' -e '^poddisruptionbudget' "$temporary/put" || { why='not unchanged'; return 1; }
}

renewed() {  # of a pool that runs as root the next pod is the one that a namespace refuses
    k rollout restart "$pool" && k rollout status "$pool" --timeout 60m && predicted
}

rolled() {  # API and keepers, while a director's pod sends two creates a second through the Service
    k exec "$pool" -c director -- python -c "$client" http://api:8080 "$model" "$input" 60 1800 "$token" &
    loading=$!
    sleep 2
    k rollout restart deployment/api && k rollout status deployment/api --timeout 10m &&
        k rollout restart deployment/keeper && k rollout status deployment/keeper --timeout 10m
    done=$?
    wait "$loading" || { done=1 why='of the load'; }
    loading=''
    return $done
}

from_zero() {  # paused, so that no autoscaler interferes; by hand where there is none
    may -n "$namespace" annotate scaledobject --all autoscaling.keda.sh/paused-replicas=0 --overwrite
    k scale "$pool" --replicas 0 && k wait --for delete pod -l app.kubernetes.io/component=director --timeout 35m &&
        { may -n "$namespace" annotate scaledobject --all autoscaling.keda.sh/paused-replicas=1 --overwrite || true; } &&
        k scale "$pool" --replicas 1 && k rollout status "$pool" --timeout 60m && predicted
    done=$?
    may -n "$namespace" annotate scaledobject --all autoscaling.keda.sh/paused-replicas-
    return $done
}

scaled() {  # by KEDA itself: to zero once nothing waits for its cooldownPeriod, and from it for one prediction
    has_autoscaler || return "$skipped"
    k wait --for delete pod -l app.kubernetes.io/component=director --timeout 30m && predicted
}

drained() {
    [ "$(k get nodes -o name | wc -l)" -gt 1 ] || { why='one node'; return "$skipped"; }
    cordoned=$(k get pod -l app.kubernetes.io/component=api -o 'jsonpath={.items[0].spec.nodeName}')
    k drain "$cordoned" --ignore-daemonsets --delete-emptydir-data --timeout 40m &&
        k rollout status deployment/api --timeout 10m && k rollout status "$pool" --timeout 60m && predicted
    done=$?
    k uncordon "$cordoned" && cordoned=''
    return $done
}

members() {
    k get statefulset redis -o 'jsonpath={.spec.replicas}'
}

admin='REDISCLI_AUTH=$ADMIN_PASSWORD valkey-cli --user admin'

failed_over() {  # the master is lost without a word, and another member takes its place
    [ "$(members)" = 3 ] || { why='one Redis'; return "$skipped"; }
    master=''
    for member in redis-0 redis-1 redis-2; do
        [ "$(k exec $member -c redis -- sh -c "$admin role" | head -n 1)" != master ] || master=$member
    done
    [ -n "$master" ] || { why='no member is the master'; return 1; }
    k delete pod "$master" --force --grace-period 0 && predicted && k rollout status statefulset/redis --timeout 15m
}

restored() {
    [ "$(members)" != 3 ] || { why='three Redis'; return "$skipped"; }
    k exec redis-0 -c redis -- sh /etc/redis/copy.sh > "$temporary/director.rdb" &&
        k exec redis-0 -c redis -- sh -c "$admin set contact:verify later" &&
        k scale statefulset redis --replicas 0 && k wait --for delete pod/redis-0 --timeout 180s &&
        k apply -f "$here/restore-pod.yaml" && k wait --for condition=Ready pod/restore --timeout 5m &&
        k exec -i restore -- sh -c 'cd /data && cat > new.rdb && valkey-check-rdb new.rdb && rm -rf appendonlydir && mkdir appendonlydir && mv new.rdb appendonlydir/appendonly.aof.1.base.rdb && echo "file appendonly.aof.1.base.rdb seq 1 type b" > appendonlydir/appendonly.aof.manifest' < "$temporary/director.rdb" &&
        k delete pod restore && k scale statefulset redis --replicas 1 && k rollout status statefulset/redis --timeout 15m &&
        k rollout status deployment/api --timeout 10m &&
        [ "$(k exec redis-0 -c redis -- sh -c "$admin exists contact:verify")" = 0 ] && predicted
}

uninstalled() {  # and installed again: the token of before is in Redis
    if [ -n "$chart" ]; then
        at="helm uninstall"
        within 600 helm uninstall director -n "$namespace" || return 1
    else
        k delete -k "$overlay" --timeout 40m || return 1
    fi
    k wait --for delete pod --all --timeout 40m && k get pvc data-redis-0 && applied && predicted
}

# The table, and the report

strings() {  # each line as an element of JSON
    between=''
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        printf '%s%s' "$between" "$(quoted "$line")"
        between=', '
    done
}

reported() {
    of_node='{.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion} {.status.nodeInfo.osImage}'
    of_node="$of_node {.status.nodeInfo.architecture} {.status.allocatable.cpu} {.status.allocatable.memory}"
    of_class='{.metadata.name} {.provisioner} {.reclaimPolicy} {.volumeBindingMode}'
    end='{"\n"}{end}'
    echo '{'
    printf '"at": %s, "overlay": %s, "by": "%s",\n' "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" \
        "$(quoted "$(basename "$overlay")")" "$([ -n "$chart" ] && echo helm || echo kustomize)"
    printf '"versions": [%s],\n' "$({ may version; [ -z "$chart" ] || within 60 helm version --short; } | strings)"
    printf '"images": [%s],\n' "$(may -n "$namespace" get deployment,statefulset \
        -o "jsonpath={range .items[*].spec.template.spec.containers[*]}{.image}$end" | sort -u | strings)"
    printf '"nodes": [%s],\n' "$(may get nodes -o "jsonpath={range .items[*]}$of_node$end" | strings)"
    printf '"storage_classes": [%s],\n' "$(may get storageclass -o "jsonpath={range .items[*]}$of_class$end" | strings)"
    printf '"daemonsets": [%s],\n' "$(may -n kube-system get daemonset -o name | strings)"
    printf '"keda": [%s],\n' "$(may -n keda get deployment -o "jsonpath={range .items[*].spec.template.spec.containers[*]}{.image}$end" | strings)"
    printf '"rows": [\n%s\n]\n}\n' "$(sed '$!s/$/,/' "$rows")"
}

finish() {
    cat "$table"
    [ -z "$report" ] || reported > "$report"
    exit $failed
}

try "apply" applied
[ $failed = 0 ] || finish
try "the first director stays" stayed
model=$(k exec "$pool" -c director -- printenv DIRECTOR_MODEL)
token=$(k exec deploy/api -c api -- director token create --account verify | tail -n 1)
try "a prediction" predicted
try "a second apply changes nothing" unchanged
try "a new pod of the pool" renewed
try "API and keepers rolled under load" rolled
try "to zero and back" from_zero
try "to zero and back by KEDA" scaled
try "a drained node" drained
try "the master deleted by force" failed_over
try "a backup, and its restore" restored
try "uninstall keeps the data" uninstalled
finish
