import asyncio
from pathlib import Path

import replicate
from given import gate, models, open_gate, raises, said_all
from replicate.exceptions import ModelError
from replicate.lib._predictions_use import get_path_url

writer, captioner, painter, dreamer = models.writer, models.captioner, models.painter, models.dreamer

for ref in (writer.name, writer.ref):
    assert replicate.use(ref)(prompt="llamas") == "About llamas."
    assert list(replicate.use(ref, streaming=True)(prompt="llamas")) == ["About ", "llamas", "."]

running = replicate.use(writer.name).create(prompt="llamas", gate=gate)
while not running.logs():
    pass
open_gate()
assert running.output() == "About llamas."

# files: a path that is fetched when it is opened; one model's output is another's input
images = replicate.use(painter.name)(prompt="a raccoon")
assert [Path(image).read_bytes() for image in images] == [b"a raccoon0", b"a raccoon1"]
assert get_path_url(images[0]).startswith("https://")
assert replicate.use(captioner.name)(prompt="this is ", image=images[0]) == "this is a raccoon0"
dreamt = replicate.use(dreamer.name, streaming=True)(prompts="sunset")
assert [Path(image).read_bytes() for image in dreamt] == [b"sunset", b"sunset"]

failed = raises(ModelError, lambda: replicate.use(captioner.name)(then="raise"))
assert failed.prediction.error == "ValueError: it went wrong"


async def the_same_asynchronously() -> None:
    write = replicate.use(writer.name, use_async=True)
    assert await write(prompt="llamas") == "About llamas."
    stream = replicate.use(writer.name, use_async=True, streaming=True)
    assert [piece async for piece in await stream(prompt="llamas")] == ["About ", "llamas", "."]


asyncio.run(the_same_asynchronously())
said_all()
