"""Send many inputs in one request, and print each output as it comes. Needs: pip install httpx

python batch.py TEXT …
"""

import os
import sys
import time
import uuid

import httpx

MODEL = "example/hello"
api = httpx.Client(
    base_url=os.environ.get("REPLICATE_BASE_URL", "http://127.0.0.1:8080") + "/v1",
    headers={"Authorization": f"Bearer {os.environ['REPLICATE_API_TOKEN']}"},
)


def send(texts):
    """Return the predictions in the order of the texts. A batch has at most 1,000."""
    version = api.get(f"/models/{MODEL}").raise_for_status().json()["latest_version"]["id"]
    batch = {"predictions": [{"version": version, "input": {"text": text, "n": 1}} for text in texts]}
    key = str(uuid.uuid4())  # the same key makes it safe to send the batch again, whatever happened to the answer
    for attempt in range(5):
        try:
            answer = api.post("/predictions/batch", json=batch, headers={"Idempotency-Key": key})
            if answer.status_code < 500:
                break
        except httpx.TransportError:
            pass
        time.sleep(2**attempt)
    else:
        sys.exit("The service did not answer.")
    results = answer.raise_for_status().json()["results"]
    refused = [one["error"] for one in results if "error" in one]
    if refused:
        sys.exit(f"{len(refused)} of {len(results)} were refused, the first one: {refused[0]}")
    return [one["prediction"] for one in results]


for prediction in send(sys.argv[1:] or ["one", "two", "three"]):
    while prediction["status"] in ("starting", "processing"):
        time.sleep(0.2)
        prediction = api.get(f"/predictions/{prediction['id']}").raise_for_status().json()
    output = "".join(prediction["output"] or []).strip()
    print(prediction["status"], prediction["input"]["text"], prediction["error"] or output)
