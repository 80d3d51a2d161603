"""Test the example models: schemas match predictors, they run on real Cog, and the wheel contains them."""

import ast
import base64
import importlib.util
import inspect
import io
import json
import re
import typing
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import cog
import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder
from PIL import Image

from director.core.ids import version_id
from director.examples import EXAMPLES, Example
from tests.support.cog import cog_process, cog_server, write_model

HELLO = EXAMPLES["example/hello"]
THUMBNAIL = EXAMPLES["example/thumbnail"]
REPOSITORY = Path(__file__).parents[3]

each_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))

INPUT_TYPES = {
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    cog.Path: {"type": "string", "format": "uri"},
}
OUTPUT_TYPES = {
    cog.ConcatenateIterator[str]: {
        "title": "Output",
        "type": "array",
        "items": {"type": "string"},
        "x-cog-array-type": "iterator",
        "x-cog-array-display": "concatenate",
    },
    cog.Path: {"title": "Output", "type": "string", "format": "uri"},
}
CONSTRAINTS = {
    "default": "default",
    "description": "description",
    "minimum": "ge",
    "maximum": "le",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "regex",
    "deprecated": "deprecated",
    "x-cog-accept": "accept",
}


def schema_of(example: Example) -> dict[str, Any]:
    return json.loads(example.schema_file.read_bytes())


def predict_of(example: Example) -> Any:
    file, _, name = example.predict.partition(":")
    spec = importlib.util.spec_from_file_location(f"{example.folder.name}_predict", example.folder / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name).predict


def input_property(order: int, name: str, hint: Any, info: cog.FieldInfo) -> dict[str, Any]:
    assert info.choices is None, "choices become a component of their own: teach this test to expect it"
    known = {key: getattr(info, field) for key, field in CONSTRAINTS.items()}
    said = {key: value for key, value in known.items() if value is not None}
    return {"title": name.replace("_", " ").title(), "x-order": order} | INPUT_TYPES[hint] | said


@each_example
def test_schema_accepts_the_inputs_of_the_predictor(example):
    predict = predict_of(example)
    hints = typing.get_type_hints(predict)
    inputs = {name: given.default for name, given in inspect.signature(predict).parameters.items() if name != "self"}

    shipped = schema_of(example)["components"]["schemas"]["Input"]

    assert shipped == {
        "title": "Input",
        "type": "object",
        "properties": {
            name: input_property(order, name, hints[name], info) for order, (name, info) in enumerate(inputs.items())
        },
        "required": [name for name, info in inputs.items() if info.default is None],
    }


@each_example
def test_schema_describes_the_output_of_the_predictor(example):
    hint = typing.get_type_hints(predict_of(example))["return"]
    assert schema_of(example)["components"]["schemas"]["Output"] == OUTPUT_TYPES[hint]


@each_example
def test_schema_allows_event_streams_for_streaming_predictors(example):
    # at run time the decorator leaves no mark: `cog build` reads it from the source, and so does this
    tree = ast.parse(example.predictor_file.read_text())
    predict = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "predict")
    marked = any(re.match(r"(cog\.)?streaming\b", ast.unparse(decorator)) for decorator in predict.decorator_list)

    assert schema_of(example)["paths"]["/predictions"]["post"].get("x-cog-streaming", False) is marked


def test_schemas_differ_only_in_what_the_model_defines():
    def frame(example: Example) -> dict[str, Any]:
        schema = schema_of(example)
        del schema["components"]["schemas"]["Input"], schema["components"]["schemas"]["Output"]
        schema["paths"]["/predictions"]["post"].pop("x-cog-streaming", None)
        return schema

    assert frame(HELLO) == frame(THUMBNAIL)
    assert frame(HELLO)["openapi"] == "3.0.2"
    assert set(frame(HELLO)["paths"]) == {
        "/",
        "/health-check",
        "/predictions",
        "/predictions/{prediction_id}/cancel",
    }


@each_example
def test_cog_yaml_names_the_served_predictor(example):
    assert f'predict: "{example.predict}"\n' in (example.folder / "cog.yaml").read_text()


def test_version_id_is_stable_while_nothing_changes():
    assert version_id("example/hello", b"{}", b"pass") == version_id("example/hello", b"{}", b"pass")
    assert re.fullmatch(r"[0-9a-f]{64}", version_id("example/hello", b"{}", b"pass"))


def test_version_id_differs_for_every_split_of_the_same_bytes():
    splits = [("a", b"b", b"c"), ("ab", b"", b"c"), ("", b"ab", b"c"), ("a", b"bc", b""), ("", b"", b"abc")]
    assert len({version_id(*split) for split in splits}) == len(splits)


@pytest.fixture(scope="module")
async def hello() -> AsyncGenerator[httpx.AsyncClient, None]:
    async with cog_server(HELLO.folder) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
async def thumbnail() -> AsyncGenerator[httpx.AsyncClient, None]:
    async with cog_server(THUMBNAIL.folder) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client


async def predict(client: httpx.AsyncClient, prediction_id: str, **given: Any) -> httpx.Response:
    """Send a prediction until there is a slot: the previous answer arrives a moment before its slot is free."""
    while True:
        response = await client.put(f"/predictions/{prediction_id}", json={"input": given}, timeout=30)
        if response.status_code != 409:
            return response


def picture(*, size: tuple[int, int], form: str, mode: str = "RGB", orientation: int | None = None) -> str:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    file = io.BytesIO()
    Image.new(mode, size).save(file, format=form, exif=exif)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def opened(data_uri: str) -> Image.Image:
    head, _, body = data_uri.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.cog
async def test_hello_repeats_its_text_n_times(hello):
    answer = (await predict(hello, "says", text="hi", n=3)).json()
    assert (answer["status"], answer["output"]) == ("succeeded", ["hi 1\n", "hi 2\n", "hi 3\n"])


@pytest.mark.cog
async def test_hello_repeats_five_times_by_default_and_accepts_zero(hello):
    assert len((await predict(hello, "default", text="hi")).json()["output"]) == 5
    assert (await predict(hello, "nothing", text="hi", n=0)).json()["output"] == []


@pytest.mark.cog
async def test_hello_streams_each_string_as_an_event(hello):
    events = []
    async with hello.stream(
        "PUT",
        "/predictions/streams",
        json={"input": {"text": "hi", "n": 3, "delay": 0.01}},
        headers={"accept": "text/event-stream"},
    ) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                events.append([line.removeprefix("event: ")])
            elif line.startswith("data: "):
                events[-1].append(json.loads(line.removeprefix("data: ")))

    assert [data["chunk"] for name, data in events if name == "output"] == ["hi 1\n", "hi 2\n", "hi 3\n"]
    assert (events[0][0], events[-1][0], events[-1][1]["status"]) == ("start", "completed", "succeeded")


@pytest.mark.cog
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"text": 5}, "text"),
        ({"n": 1}, "text"),
        ({"text": "hi", "n": -1}, "n"),
        ({"text": "hi", "delay": "x"}, "delay"),
    ],
    ids=["a number for a text", "no text", "fewer than none", "a word for a number"],
)
async def test_hello_refuses_what_its_schema_forbids(hello, given, field):
    response = await predict(hello, "refused", **given)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "input", field]


@pytest.mark.cog
async def test_long_pause_between_two_strings_can_be_canceled(hello):
    async def cancel_until_it_ends() -> None:
        while True:  # one cancel is not enough: Cog may miss it in the first milliseconds of a run
            await hello.post("/predictions/cancels/cancel")
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as canceling:
        canceling.start_soon(cancel_until_it_ends)
        answer = (await predict(hello, "cancels", text="hi", n=2, delay=3600)).json()
        canceling.cancel_scope.cancel()
    assert answer["status"] == "canceled"


@pytest.mark.cog
@each_example
async def test_server_shows_the_shipped_schema(example, hello, thumbnail):
    client = {HELLO.name: hello, THUMBNAIL.name: thumbnail}[example.name]
    assert (await client.get("/openapi.json")).json() == schema_of(example)


@pytest.mark.cog
@pytest.mark.parametrize(
    ("given", "size", "mode"),
    [
        ({"image": picture(size=(400, 200), form="PNG")}, (128, 64), "RGB"),
        ({"image": picture(size=(400, 200), form="PNG"), "size": 50}, (50, 25), "RGB"),
        ({"image": picture(size=(40, 20), form="GIF")}, (40, 20), "RGB"),
        ({"image": picture(size=(400, 200), form="PNG", mode="RGBA")}, (128, 64), "RGBA"),
        ({"image": picture(size=(400, 200), form="JPEG", mode="CMYK")}, (128, 64), "RGB"),
        ({"image": picture(size=(400, 200), form="JPEG", orientation=6)}, (64, 128), "RGB"),
    ],
    ids=["wide", "smaller still", "small enough", "see-through", "for print", "held upright"],
)
async def test_thumbnail_returns_a_smaller_picture(thumbnail, given, size, mode):
    answer = (await predict(thumbnail, "smaller", **given)).json()
    assert answer["status"] == "succeeded", answer
    result = opened(answer["output"])
    assert (result.size, result.mode) == (size, mode)


@pytest.mark.cog
async def test_thumbnail_reports_a_file_that_is_no_picture(thumbnail):
    answer = (await predict(thumbnail, "text", image="data:text/plain;base64,aGVsbG8=")).json()
    assert answer["status"] == "failed"
    assert "image is not a picture that this model can read" in answer["error"]


@pytest.mark.cog
async def test_model_that_cannot_start_is_served_as_setup_failed(tmp_path):
    broken = write_model(
        tmp_path,
        """
        from cog import BasePredictor

        class Predictor(BasePredictor):
            def setup(self) -> None:
                raise RuntimeError("no weights here")

            def predict(self) -> str:
                return ""
        """,
    )
    async with cog_server(broken, until="SETUP_FAILED") as url, httpx.AsyncClient(trust_env=False) as client:
        assert "no weights here" in (await client.get(f"{url}/health-check")).json()["setup"]["logs"]

    with pytest.raises(TimeoutError, match="SETUP_FAILED"):
        async with cog_server(broken):
            pytest.fail("a broken model was served as READY")


@pytest.mark.cog
async def test_server_with_two_slots_runs_two_predictions_at_once(tmp_path):
    meeting = write_model(
        tmp_path,
        """
        import asyncio

        from cog import BasePredictor

        class Predictor(BasePredictor):
            async def setup(self) -> None:
                self.both = asyncio.Barrier(2)

            async def predict(self) -> str:
                await self.both.wait()  # for ever, if only one gets here
                return "met"
        """,
    )
    async with (
        cog_process(meeting, slots=2) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        outputs = []

        async def meet(prediction_id: str) -> None:
            outputs.append((await predict(client, prediction_id)).json()["output"])

        async with anyio.create_task_group() as both:
            both.start_soon(meet, "first")
            both.start_soon(meet, "second")
    assert outputs == ["met", "met"]


def test_wheel_contains_the_examples_with_their_schemas(tmp_path):
    [wheel] = WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for example in EXAMPLES.values():
        for file in (example.schema_file, example.predictor_file, example.folder / "cog.yaml"):
            assert file.relative_to(REPOSITORY).as_posix() in names
