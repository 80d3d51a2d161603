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

import cog
import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder
from PIL import Image

from director.core.ids import version_id
from director.examples import EXAMPLES, Example
from tests.support.cog import cog_server

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
async def test_hello_repeats_five_times_by_default_and_accepts_zero(hello):
    assert len((await predict(hello, "default", text="hi")).json()["output"]) == 5
    assert (await predict(hello, "nothing", text="hi", n=0)).json()["output"] == []


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


def test_wheel_contains_the_examples_with_their_schemas(tmp_path):
    [wheel] = WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for example in EXAMPLES.values():
        for file in (example.schema_file, example.predictor_file, example.folder / "cog.yaml"):
            assert file.relative_to(REPOSITORY).as_posix() in names
