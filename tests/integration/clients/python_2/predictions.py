import asyncio

import replicate
from given import client, gate, models, open_gate, said_all, terminal

writer, captioner = models.writer, models.captioner

# create, get, wait
made = client.predictions.create(version=writer.version, input={"prompt": "llamas", "gate": gate})
assert (made.status, made.output, made.model, made.data_removed) == ("starting", None, writer.name, False)
assert None not in (made.urls.web, made.urls.stream)
seen = made
while not seen.output:
    seen = client.predictions.get(prediction_id=made.id)
assert (seen.status, seen.output[0]) == ("processing", "About ")
open_gate()
done = client.predictions.wait(made.id)
assert (done.status, done.output, done.error) == ("succeeded", ["About ", "llamas", "."], None)
assert done.metrics.total_time >= done.metrics.predict_time

# all three spellings of a version, and of a model's latest version, are accepted
for version in (captioner.name, captioner.ref, captioner.version):
    held = client.predictions.create(version=version, input={"prompt": "hi"}, prefer="wait")
    assert (held.status, held.output, held.urls.stream) == ("succeeded", "hi", None), held
owner, name = captioner.name.split("/")
held = client.models.predictions.create(model_owner=owner, model_name=name, input={"prompt": "hi"}, prefer="wait=5")
assert (held.status, held.version) == ("succeeded", captioner.version)

# cancel a running prediction, and one that is not done in time
running = client.predictions.create(version=captioner.name, input={"gate": f"{gate}.never"})
while client.predictions.get(prediction_id=running.id).status == "starting":
    pass
client.predictions.cancel(prediction_id=running.id)
canceled = client.predictions.wait(running.id)
assert (canceled.status, canceled.output) == ("canceled", None)
bounded = client.predictions.create(version=captioner.name, input={"prompt": "hi"}, cancel_after="1m30s", prefer="wait")
assert bounded.deadline is not None

# list: the client follows the pages by itself
listed = [prediction.id for prediction in client.predictions.list()]
assert (listed[0], listed[1], listed[-1], len(listed)) == (bounded.id, running.id, made.id, 7)


async def the_same_asynchronously() -> None:
    async with replicate.AsyncReplicate() as asynchronous:
        asked = [asynchronous.predictions.create(version=captioner.name, input={"prompt": str(n)}) for n in range(3)]
        waited = [await asynchronous.predictions.wait(prediction.id) for prediction in await asyncio.gather(*asked)]
        assert [prediction.output for prediction in waited] == ["0", "1", "2"]
        assert terminal(await asynchronous.predictions.get(prediction_id=made.id))
        assert len([prediction async for prediction in asynchronous.predictions.list()]) == 10


asyncio.run(the_same_asynchronously())
said_all()
