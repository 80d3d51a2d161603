#!/bin/sh
# Tries an overlay on the cluster of the current context, and prints a table: sh k8s/verify.sh k8s/overlays/kind
# It has one pool and one Redis. Do not run it where there is work: it takes the pool to zero and restores a backup.
set -u

overlay=${1:?name the folder of an overlay}
namespace=director
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
table=$temporary/table
input=${INPUT-}  # of a model other than the example
[ -n "$input" ] || input='{"text": "verify"}'
failed=0
skipped=75

k() {
    kubectl -n "$namespace" "$@"
}

try() {  # NAME COMMAND…
    name=$1
    shift
    began=$(date +%s)
    echo "== $name" >&2
    "$@" >&2
    case $? in 0) said=passed ;; "$skipped") said='skipped: one node' ;; *) said=FAILED failed=1 ;; esac
    printf '%-40s %-17s %5s s\n' "$name" "$said" "$(($(date +%s) - began))" >> "$table"
}

applied() {
    sh "$(dirname "$0")/secrets.sh" "$overlay" && kubectl apply -f "$overlay/kept.yaml" && kubectl apply -k "$overlay" || return 1
    pool=$(k get deployment -l app.kubernetes.io/component=director -o name | head -n 1)
    k rollout status statefulset/redis --timeout 15m && k rollout status deployment/api --timeout 10m &&
        k rollout status deployment/keeper --timeout 10m && k rollout status "$pool" --timeout 60m
}

applied_again() {  # of a pool that runs as root the second apply is the one that used to refuse it
    applied && k rollout restart "$pool" && k rollout status "$pool" --timeout 60m
}

predicted() {
    k exec deploy/api -c api -- python -c '
import json, sys, urllib.request
token, model, given = sys.argv[1:]
head = {"Authorization": "Bearer " + token, "Content-Type": "application/json", "Prefer": "wait=60"}
body = json.dumps({"input": json.loads(given)}).encode()
asked = urllib.request.Request(f"http://127.0.0.1:8080/v1/models/{model}/predictions", body, head)
said = json.load(urllib.request.urlopen(asked, timeout=90))
print(said["id"], said["status"])
sys.exit(said["status"] != "succeeded")
' "$token" "$model" "$input"
}

from_zero() {  # paused, so that no autoscaler interferes; by hand where there is none
    k annotate scaledobject --all autoscaling.keda.sh/paused-replicas=0 --overwrite 2> /dev/null
    k scale "$pool" --replicas 0 && k wait --for delete pod -l app.kubernetes.io/component=director --timeout 35m &&
        { k annotate scaledobject --all autoscaling.keda.sh/paused-replicas=1 --overwrite 2> /dev/null || true; } &&
        k scale "$pool" --replicas 1 && k rollout status "$pool" --timeout 60m && predicted
    done=$?
    k annotate scaledobject --all autoscaling.keda.sh/paused-replicas- 2> /dev/null
    return $done
}

drained() {
    [ "$(kubectl get nodes -o name | wc -l)" -gt 1 ] || return "$skipped"
    node=$(k get pod -l app.kubernetes.io/component=api -o 'jsonpath={.items[0].spec.nodeName}')
    kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout 40m &&
        k rollout status deployment/api --timeout 10m && k rollout status "$pool" --timeout 60m && predicted
    done=$?
    kubectl uncordon "$node"
    return $done
}

restored() {
    admin='REDISCLI_AUTH=$ADMIN_PASSWORD valkey-cli --user admin'
    k exec redis-0 -c redis -- sh /etc/redis/copy.sh > "$temporary/director.rdb" &&
        k exec redis-0 -c redis -- sh -c "$admin set contact:verify later" &&
        k scale statefulset redis --replicas 0 && k wait --for delete pod/redis-0 --timeout 180s &&
        k apply -f "$(dirname "$0")/restore-pod.yaml" && k wait --for condition=Ready pod/restore --timeout 5m &&
        k exec -i restore -- sh -c 'cd /data && cat > new.rdb && valkey-check-rdb new.rdb && rm -rf appendonlydir && mkdir appendonlydir && mv new.rdb appendonlydir/appendonly.aof.1.base.rdb && echo "file appendonly.aof.1.base.rdb seq 1 type b" > appendonlydir/appendonly.aof.manifest' < "$temporary/director.rdb" &&
        k delete pod restore && k scale statefulset redis --replicas 1 && k rollout status statefulset/redis --timeout 15m &&
        k rollout status deployment/api --timeout 10m &&
        [ "$(k exec redis-0 -c redis -- sh -c "$admin exists contact:verify")" = 0 ] && predicted
}

try "apply" applied
model=$(k exec "$pool" -c director -- printenv DIRECTOR_MODEL)
token=$(k exec deploy/api -c api -- director token create --account verify | tail -n 1)
try "a prediction" predicted
try "a second apply, and a new pod" applied_again
try "to zero and back" from_zero
try "a drained node" drained
try "a backup, and its restore" restored
cat "$table"
exit $failed
