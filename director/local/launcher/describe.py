"""Print what a Cog model takes and gives, by Cog's own inspector: `python describe.py predict.py:Predictor`, in the
model's folder. Run by path in the model's own Python, which has no `director`. The answer is one line of JSON at the
end of stdout: `input`, `output`, `enums`, `streams` and `cog`, or `missing` or `error` with words for people.
"""

import ast
import importlib
import importlib.util
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

STREAMING = ("streaming", "cog.streaming")


def answer(**facts: Any) -> None:
    print("\n" + json.dumps(facts, default=str))


def main() -> None:
    file, _, name = sys.argv[1].partition(":")
    # by path, Python puts the script's folder first, and its modules would hide the model's
    sys.path[0] = str(Path.cwd())
    warnings.simplefilter("ignore")
    try:
        inspector = importlib.import_module("cog._inspector")
        importlib.import_module("coglet")
    except ImportError as exc:
        answer(missing=f"{exc}")
        return
    try:
        source = Path(file).read_text(encoding="utf-8")
        info = inspector.create_predictor(load(file), name)
    except Exception as exc:  # noqa: BLE001 - the model's own code may raise anything
        last = "".join(traceback.format_exception_only(type(exc), exc)).strip()
        cause = exc.__cause__
        where = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
        answer(error=last + where)
        return
    enums: dict[str, Any] = {}
    without = secrets_without_default(source, name, info.inputs)
    fields = {
        key: describe(each, enums, is_optional=is_optional(each) or key in without) for key, each in info.inputs.items()
    }
    required = [key for key, each in info.inputs.items() if is_required(each) and key not in without]
    shown = {"title": "Input", "type": "object", "properties": fields, **({"required": required} if required else {})}
    version = getattr(importlib.import_module("cog"), "__version__", "")
    answer(input=shown, output=info.output.json_type(), enums=enums, streams=streams(source, name), cog=str(version))


def load(file: str) -> str:
    """Import the model as Cog does, by its file, and return the module's name."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return name


def describe(field: Any, enums: dict[str, Any], *, is_optional: bool) -> dict[str, Any]:
    """Return an input as `cog build` writes it. Its choices are a component of their own."""
    title = field.name.replace("_", " ").title()
    kind = field.type.json_type()
    if field.choices is not None:
        enums[field.name] = {"title": field.name, "description": "An enumeration.", "enum": field.choices, **kind}
        shown: dict[str, Any] = {"allOf": [{"$ref": f"#/components/schemas/{field.name}"}]}
    else:
        shown = {"title": title, **kind}
    shown["x-order"] = field.order
    if is_optional:
        shown["nullable"] = True
    facts = {
        "description": field.description,
        "minimum": whole(field.ge),
        "maximum": whole(field.le),
        "minLength": field.min_length,
        "maxLength": field.max_length,
        "pattern": field.regex,
        "deprecated": field.deprecated,
        "default": default_of(field),
    }
    return shown | {key: value for key, value in facts.items() if value is not None}


def whole(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def default_of(field: Any) -> Any:
    """Return the default as JSON. A default that a function makes, or that JSON cannot hold, is not shown."""
    try:
        value = None if field.default is None else field.type.json_encode(field.default)
        json.dumps(value)
    except Exception:  # noqa: BLE001 - see above
        return None
    return value


def secrets_without_default(source: str, name: str, inputs: Any) -> set[str]:
    """Return the secrets that may be left out: those whose default is None in so many words. `cog build` has no other
    input like that. At run time it looks like no default at all, so read the source.
    """
    secrets = {key for key, field in inputs.items() if field.type.primitive.name == "SECRET"}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in (name, "predict", "run"):
            named = node.args.posonlyargs + node.args.args
            for argument, default in zip(reversed(named), reversed(node.args.defaults)):  # noqa: B905 - older Pythons of models lack `strict`
                if argument.arg in secrets and says_none(default):
                    found.add(argument.arg)
    return found


def says_none(default: ast.expr) -> bool:
    if isinstance(default, ast.Call):
        given = [*default.args[:1], *(each.value for each in default.keywords if each.arg == "default")]
        return any(says_none(each) for each in given if not isinstance(each, ast.Call))
    return isinstance(default, ast.Constant) and default.value is None


def is_optional(field: Any) -> bool:
    return field.type.repetition.name in ("OPTIONAL", "OPTIONAL_REPEATED")


def is_required(field: Any) -> bool:
    return field.default is None and not is_optional(field)


def streams(source: str, name: str) -> bool:
    """Return whether `@streaming` marks what runs. The decorator leaves no mark at run time, so read the source."""
    tree = ast.parse(source)
    runs = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return any(
        ast.unparse(decorator).partition("(")[0] in STREAMING
        for node in runs
        if node.name in (name, "predict", "run")
        for decorator in node.decorator_list
    )


if __name__ == "__main__":
    main()
