"""Small models in place of those in official clients' examples: each answers within milliseconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from director.core.ids import Kind
from tests.support.cog import write_model

SOURCE: Final = """
    import tempfile
    from typing import Iterator, List
    from cog import BaseModel, BasePredictor, ConcatenateIterator, Path, streaming

    def file(name, data):
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(data)
        return path

    class Writer(BasePredictor):
        @streaming
        def predict(self, prompt: str = "", gate: str = "", then: str = "") -> ConcatenateIterator[str]:
            print("iteration: 0, render:loss: -0.6171875")
            for word in ("About ", prompt):
                yield word
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")
            yield "."

    class Captioner(BasePredictor):
        def predict(self, image: Path = None, prompt: str = "", gate: str = "", then: str = "") -> str:
            print("looking")
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")
            return f"{prompt}{image.read_text() if image else ''}"

    class Painter(BasePredictor):
        def predict(self, prompt: str = "", image: Path = None) -> List[Path]:
            painted = image.read_bytes() if image else prompt.encode()
            return [file(f"out-{n}.png", painted + b"%d" % n) for n in range(2)]

    class Sketcher(BasePredictor):
        def predict(self, prompt: str = "", image: Path = None) -> Path:
            print("iteration: 0, render:loss: -0.6171875")
            return file("out.png", image.read_bytes() if image else prompt.encode())

    class Dreamer(BasePredictor):
        def predict(self, prompts: str = "", gate: str = "") -> Iterator[Path]:
            yield file("first.png", prompts.encode())
            wait_for(gate)
            yield file("second.png", prompts.encode())

    class TrainingOutput(BaseModel):
        weights: Path

    def train(input_images: str = "", token_string: str = "", gate: str = "") -> TrainingOutput:
        print("reading", input_images)
        wait_for(gate)
        return TrainingOutput(weights=file("weights.bin", token_string.encode()))
"""
TEXT: Final = {"type": "string"}
FILE: Final = {"type": "string", "format": "uri"}


class ModelUnderTest(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    stub: str
    schema: Mapping[str, Any]
    kind: Kind = ""

    @property
    def ref(self) -> str:
        return f"{self.name}:{self.version}"

    def write(self, folder: Path) -> Path:
        return write_model(folder, SOURCE, self.schema)


def _schema(
    takes: Mapping[str, Any],
    output: Mapping[str, Any],
    *,
    streams: bool = False,
    trains: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    schemas = {"Input": {"type": "object", "properties": takes}, "Output": {"title": "Output", **output}}
    paths: dict[str, Any] = {"/predictions": {"post": {"x-cog-streaming": True} if streams else {}}}
    if trains:
        schemas["TrainingInput"] = {"type": "object", "properties": trains}
        paths["/trainings"] = {"post": {}}
    info = {"title": "Cog", "version": "0.1.0"}
    return {"openapi": "3.0.2", "info": info, "paths": paths, "components": {"schemas": schemas}}


ITERATOR: Final = {"type": "array", "x-cog-array-type": "iterator"}
TOKENS: Final = {**ITERATOR, "items": TEXT, "x-cog-array-display": "concatenate"}
GATED: Final = {"gate": TEXT, "then": TEXT}

WRITER: Final = ModelUnderTest(
    name="acme/writer",
    version="a1" * 32,
    stub="predict.py:Writer",
    schema=_schema({"prompt": TEXT, **GATED}, TOKENS, streams=True),
)
CAPTIONER: Final = ModelUnderTest(
    name="acme/captioner",
    version="b2" * 32,
    stub="predict.py:Captioner",
    schema=_schema({"image": FILE, "prompt": TEXT, **GATED}, TEXT),
)
PAINTER: Final = ModelUnderTest(
    name="acme/painter",
    version="c3" * 32,
    stub="predict.py:Painter",
    schema=_schema({"prompt": TEXT, "image": FILE}, {"type": "array", "items": FILE}),
)
SKETCHER: Final = ModelUnderTest(
    name="acme/sketcher",
    version="f6" * 32,
    stub="predict.py:Sketcher",
    schema=_schema({"prompt": TEXT, "image": FILE}, FILE),
)
DREAMER: Final = ModelUnderTest(
    name="acme/dreamer",
    version="d4" * 32,
    stub="predict.py:Dreamer",
    schema=_schema({"prompts": TEXT, "gate": TEXT}, {**ITERATOR, "items": FILE}),
)
TRAINER: Final = ModelUnderTest(
    name="acme/trainer",
    version="e5" * 32,
    stub="predict.py:train",
    kind="training",
    schema=_schema({}, TEXT, trains={"input_images": TEXT, "token_string": TEXT, "gate": TEXT}),
)
MODELS: Final = (WRITER, CAPTIONER, PAINTER, SKETCHER, DREAMER, TRAINER)
