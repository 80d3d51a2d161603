import asyncio
import io
import tempfile
from pathlib import Path

import replicate
from given import client, models, raises, said_all

captioner, painter = models.captioner, models.painter
picture = Path(tempfile.mkdtemp()) / "cat.png"
picture.write_bytes(b"a cat")

# as inputs
for strategy in (None, "url", "base64"):
    with picture.open("rb") as file:
        assert client.run(captioner.name, input={"image": file}, file_encoding_strategy=strategy) == "a cat"
assert client.run(captioner.name, input={"image": picture}) == "a cat"
assert client.run(captioner.name, input={"image": io.BytesIO(b"a cat")}) == "a cat"

# as outputs
first, second = client.run(painter.name, input={"prompt": "a raccoon"})
assert (first.read(), b"".join(second)) == (b"a raccoon0", b"a raccoon1")
assert first.url.startswith("https://")
assert client.run(painter.name, input={"image": first.url})[0].read() == b"a raccoon00"
assert isinstance(client.run(painter.name, input={"prompt": "x"}, use_file_output=False)[0], str)

# the files themselves
for file in client.files.list():
    client.files.delete(file_id=file.id)
made = client.files.create(content=picture, filename="a cat.png", type="image/png", metadata='{"k": 1}')
assert (made.size, made.content_type, made.metadata) == (5, "image/png", {"k": 1}), made
assert client.files.get(file_id=made.id).to_dict() == made.to_dict()
assert [file.id for file in client.files.list()] == [made.id]
client.files.delete(file_id=made.id)
raises(replicate.NotFoundError, lambda: client.files.get(file_id=made.id))


async def the_same_asynchronously() -> None:
    async with replicate.AsyncReplicate() as asynchronous:
        assert await asynchronous.run(captioner.name, input={"image": io.BytesIO(b"a cat")}) == "a cat"
        outputs = await asynchronous.run(painter.name, input={"prompt": "a raccoon"})
        assert await outputs[0].read() == b"a raccoon0"


asyncio.run(the_same_asynchronously())
said_all()
