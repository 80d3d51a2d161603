#!/bin/sh
# Ask for a prediction and let the service call the receiver when it has ended. Needs curl.
#
# sh webhook.sh RECEIVER [MODEL]
set -eu
base=${REPLICATE_BASE_URL:-http://127.0.0.1:8080}
curl --silent --show-error --fail-with-body "$base/v1/models/${2:-example/hello}/predictions" \
  -H "Authorization: Bearer $REPLICATE_API_TOKEN" -H "Content-Type: application/json" \
  -d '{"input": {"text": "hello", "n": 3}, "webhook": "'"$1"'", "webhook_events_filter": ["completed"]}'
