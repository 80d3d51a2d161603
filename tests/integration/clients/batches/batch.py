"""Do what OpenAI's guide to its Batch API does: upload, create, poll, download, list, cancel. Prints what came."""

import json
import time

from openai import OpenAI

client = OpenAI()
batch_input_file = client.files.create(file=open("batchinput.jsonl", "rb"), purpose="batch")  # noqa: PTH123, SIM115 - as theirs
batch = client.batches.create(
    input_file_id=batch_input_file.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    metadata={"description": "nightly eval job"},
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
file_response = client.files.content(batch.output_file_id)
lines = [json.loads(line) for line in file_response.text.splitlines()]
canceled = client.batches.cancel(batch.id)
client.files.delete(batch_input_file.id)
said = {
    "status": batch.status,
    "counts": [batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed],
    "metadata": batch.metadata,
    "lines": sorted(line["custom_id"] for line in lines),
    "listed": batch.id in [each.id for each in client.batches.list(limit=10)],
    "canceled": canceled.status,
    "files": sorted(each.purpose for each in client.files.list()),
}
print(json.dumps(said))
