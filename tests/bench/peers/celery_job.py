"""The job under Celery, in threads, with its result."""

import json
import os
import sys
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

from celery import Celery

REDIS, MODEL = os.environ["BENCH_REDIS"], urlsplit(os.environ["BENCH_MODEL"]).netloc
KEPT = threading.local()

app = Celery("celery_job", broker=REDIS, backend=REDIS)


@app.task(name="run")
def run(given: dict[str, object]) -> object:
    if not hasattr(KEPT, "http"):
        KEPT.http = HTTPConnection(MODEL)
    KEPT.http.request("POST", "/run", json.dumps({"input": given}))
    return json.loads(KEPT.http.getresponse().read())["output"]


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        run.delay({"text": "hello", "n": 3})
