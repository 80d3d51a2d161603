import warnings

import httpx
import replicate
from given import client, models, said_all

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    assert list(replicate.stream(models.writer.name, input={"prompt": "llamas"})) == ["About ", "llamas", "."]

# the client no longer has a reader of its own for this address
made = client.predictions.create(version=models.writer.version, input={"prompt": "llamas"}, stream=True)
told = httpx.get(made.urls.stream, headers={"Accept": "text/event-stream"}, timeout=30).text
spoken = [line for line in told.splitlines() if line.startswith("event: ") and line != "event: logs"]
assert spoken == ["event: output"] * 3 + ["event: done"]
said_all()
