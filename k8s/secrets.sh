#!/bin/sh
# Writes the secrets of an overlay that it has not got yet: sh k8s/secrets.sh k8s/overlays/small
# secrets.env has all of them, and is yours to keep and change. secrets/ has what each part reads, made from it each time:
# so a change rolls those parts alone.
set -eu
umask 077
folder=${1:?name the folder of an overlay}
file=$folder/secrets.env

made() {  # 48 digits: kustomize breaks the line of a longer secret, and each `kubectl apply` would say `configured`
    od -An -N 24 -tx1 /dev/urandom | tr -d ' \n'
}

part() {  # the lines whose names match
    grep -E "^($2)=" "$file" > "$folder/secrets/$1.env" || true
}

touch "$file"
# an editor may have left the last line without its end, and what is added would become part of it
[ -z "$(tail -c 1 "$file")" ] || echo >> "$file"
of_parts='REDIS_PASSWORD API_REDIS_PASSWORD KEEPER_REDIS_PASSWORD RUN_REDIS_PASSWORD'
others='KEDA_PASSWORD BACKUP_PASSWORD ADMIN_PASSWORD REPLICA_PASSWORD SENTINEL_PASSWORD METRICS_TOKEN SCALE_TOKEN UPLOAD_SECRET'
for name in $of_parts $others; do
    grep -q "^$name=" "$file" || echo "$name=$(made)" >> "$file"
done
# a second one that Redis takes, while a new one is being brought out
for name in $of_parts; do
    grep -q "^${name}_FORMER=" "$file" || echo "${name}_FORMER=" >> "$file"
done
mkdir -p "$folder/secrets"
part redis '.*_PASSWORD(_FORMER)?'
part api 'API_REDIS_PASSWORD|SENTINEL_PASSWORD|METRICS_TOKEN'
part keeper 'KEEPER_REDIS_PASSWORD|API_REDIS_PASSWORD|SENTINEL_PASSWORD|SCALE_TOKEN'
part director 'RUN_REDIS_PASSWORD|SENTINEL_PASSWORD|UPLOAD_SECRET'
part files 'AWS_.*'
