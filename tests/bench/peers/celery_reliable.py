"""The job under Celery, in its default pool, with the settings for tasks that must survive their worker."""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

from celery import Celery

REDIS = os.environ["BENCH_REDIS"]
SPEAKING = threading.Lock()
TIMEOUT_S = os.environ.get("BENCH_TIMEOUT_S", "")

app = Celery("celery_reliable", broker=REDIS, backend=REDIS)
app.conf.update(
    # docs.celeryq.dev/en/stable/faq.html: for a task that runs again if its worker crashes
    task_acks_late=True,
    # docs.celeryq.dev/en/stable/userguide/configuration.html#task-reject-on-worker-lost
    task_reject_on_worker_lost=True,
    # docs.celeryq.dev/en/stable/userguide/optimizing.html: reserve one task at a time
    worker_prefetch_multiplier=1,
    # docs.celeryq.dev/en/stable/userguide/configuration.html#result-backend-always-retry
    result_backend_always_retry=True,
    broker_connection_retry_on_startup=True,
)
if TIMEOUT_S:
    # docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html, "Visibility timeout": set all three
    app.conf.visibility_timeout = int(TIMEOUT_S)
    app.conf.result_backend_transport_options = {"visibility_timeout": int(TIMEOUT_S)}
    app.conf.broker_transport_options = {
        "visibility_timeout": int(TIMEOUT_S),
        # docs.celeryq.dev/projects/kombu/en/stable/reference/kombu.transport.redis.html: without them it looks every
        # 100 s, and not for 300 s after a worker was killed, or Redis, while it looked
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,
    }
    # the worker's own log recommends it, and it is the default of Celery 6: no run goes on that cannot be acknowledged
    app.conf.worker_cancel_long_running_tasks_on_connection_loss = True


@app.task(name="run")
def run(job: str) -> object:
    body = json.dumps({"input": {"job": job}}).encode()
    headers = {"content-type": "application/json"}
    with urlopen(Request(f"{os.environ['BENCH_MODEL']}/run", body, headers)) as answer:  # noqa: S310 - of this machine
        return json.loads(answer.read())["output"]


def file(job: str) -> None:
    try:
        run.apply_async((job,), task_id=job)
    except Exception as exc:  # noqa: BLE001 - the caller learns that it was not filed, whatever the reason
        say(f"refused {job} {exc!r}".splitlines()[0])
    else:
        say(f"accepted {job}")


def say(line: str) -> None:
    with SPEAKING:  # the lines of two threads would mix
        print(line, flush=True)


if __name__ == "__main__":
    with ThreadPoolExecutor(32) as threads:
        for line in sys.stdin:
            threads.submit(file, line.strip())
