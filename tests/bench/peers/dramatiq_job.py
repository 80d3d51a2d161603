"""The job under Dramatiq, in threads, with its result."""

import json
import os
import sys
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

REDIS, MODEL = os.environ["BENCH_REDIS"], urlsplit(os.environ["BENCH_MODEL"]).netloc
KEPT = threading.local()

broker = RedisBroker(url=REDIS)
broker.add_middleware(Results(backend=RedisBackend(url=REDIS), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor
def run(given: dict[str, object]) -> object:
    if not hasattr(KEPT, "http"):
        KEPT.http = HTTPConnection(MODEL)
    KEPT.http.request("POST", "/run", json.dumps({"input": given}))
    return json.loads(KEPT.http.getresponse().read())["output"]


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        run.send({"text": "hello", "n": 3})
