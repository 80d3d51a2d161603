"""Write what `up` and `serve` show when they are ready: how to call one model, with an example input from its schema,
and how to serve another one.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from director.local import DEFAULT_HOME
from director.local.home import State

TEXT: Final = "hello"
FILE: Final = "data:text/plain;base64,aGVsbG8K"  # an address would have to be reachable from the model server
DEEPEST: Final = 5
FALLBACK: Final[Mapping[str, Any]] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}

ASK: Final = """\
Ask {model}:

  curl -s {url}/v1/models/{model}/predictions -H "Authorization: Bearer {token}" \
-H "Content-Type: application/json" -H "Prefer: wait" -d {body}

The same with Replicate's client for Python (pip install "replicate<2"):

  import replicate
  client = replicate.Client(api_token="{token}", base_url="{url}")
  {call}

Or: {program} predict {model}{inputs}{home}"""

SERVE: Final = """\
Serve a model of yours, from a folder with its predict.py or cog.yaml:

  {program} serve FOLDER --model owner/name{home}

or from a model server that runs already, say Cog on port 5000:

  {program} run --model owner/name --server http://127.0.0.1:5000 --home {named}"""


def usage(
    model: str, given: Mapping[str, Any], state: State, *, program: str, home: str, output: Mapping[str, Any]
) -> str:
    run = f'client.run("{model}", input={dict(given)!r})'
    if output.get("x-cog-array-display") == "concatenate":
        call = f'print("".join({run}))'
    elif output.get("x-cog-array-type") == "iterator":
        call = f"for item in {run}: print(item)"
    else:
        call = f"print({run})"
    return ASK.format(
        model=model,
        url=state.url,
        token=state.token,
        body=shlex.quote(json.dumps({"input": given})),
        call=call,
        program=program,
        inputs="".join(f" -i {shlex.quote(f'{name}={_as_typed(value)}')}" for name, value in given.items()),
        home=unusual(home),
    )


def how_to_serve(*, program: str, home: str) -> str:
    return SERVE.format(program=program, home=unusual(home), named=shlex.quote(home))


def unusual(home: str) -> str:
    return "" if home == DEFAULT_HOME else f" --home {shlex.quote(home)}"


def example_input(document: Any) -> dict[str, Any]:
    """Return a value for each input that a model requires, by its schema. A schema without inputs gives none."""
    schemas = _dict(_dict(_dict(document).get("components")).get("schemas"))
    shown = _dict(schemas.get("Input"))
    properties = _dict(shown.get("properties"))
    first, *_ = [*_list(shown.get("anyOf")), None]  # of inputs that stand for each other
    required = [*_list(shown.get("required")), *_list(_dict(first).get("required"))]
    names = [name for name in properties if name in required]
    names.sort(key=lambda name: _dict(properties[name]).get("x-order", 0))
    return {name: example_value(properties[name], schemas) for name in names}


def output_of(document: Any) -> Mapping[str, Any]:
    return _dict(_dict(_dict(_dict(document).get("components")).get("schemas")).get("Output"))


def example_value(schema: Any, schemas: Mapping[str, Any], depth: int = 0) -> Any:
    schema = _dict(schema)
    for name in ("default", "example", "const"):
        if schema.get(name) is not None:
            return schema[name]
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][0]
    if depth < DEEPEST:
        for part in [*_list(schema.get("allOf")), *_list(schema.get("anyOf"))]:
            return example_value(part, schemas, depth + 1)
        if isinstance(reference := schema.get("$ref"), str):
            return example_value(schemas.get(reference.rpartition("/")[2]), schemas, depth + 1)
    kind = schema.get("type", "string")
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("maximum", FALLBACK[kind]))
    if kind == "array" and schema.get("minItems"):
        return [example_value(schema.get("items"), schemas, depth + 1)] if depth < DEEPEST else []
    if kind == "string":
        return FILE if schema.get("format") == "uri" else TEXT
    return FALLBACK.get(str(kind), TEXT)


def _as_typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
