import asyncio
import threading

import replicate
from given import client, gate, models, open_gate, raises, said_all
from replicate.exceptions import ModelError

writer, captioner = models.writer, models.captioner
PIECES = ["About ", "llamas", "."]

for wait in (True, 5, False):
    for ref in (captioner.name, captioner.ref):
        assert client.run(ref, input={"prompt": "hi"}, wait=wait) == "hi"
    assert list(client.run(writer.ref, input={"prompt": "llamas"}, wait=wait)) == PIECES
    failed = raises(ModelError, lambda wait=wait: client.run(captioner.name, input={"then": "raise"}, wait=wait))
    assert (failed.prediction.status, failed.prediction.error) == ("failed", "ValueError: it went wrong")

# a model that has shown two of three pieces at the end of the wait returns no truncated output
threading.Timer(1.6, open_gate).start()
assert list(client.run(writer.name, input={"prompt": "llamas", "gate": gate}, wait=1)) == PIECES


async def the_same_asynchronously() -> None:
    async with replicate.AsyncReplicate() as asynchronous:
        runs = [asynchronous.run(captioner.name, input={"prompt": str(n)}) for n in range(3)]
        assert await asyncio.gather(*runs) == ["0", "1", "2"]


asyncio.run(the_same_asynchronously())
said_all()
