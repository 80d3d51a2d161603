"""Count the lines of the product and of its tests, and name its largest classes:
`python -m tests.support.size [CHECKOUT]`.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("director", "api")
TESTS: Final = ("tests",)
NO_CODE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    tokenize.ENCODING,
}
NO_FIELDS: Final = ("InitVar", "ClassVar", "Final")
SHOWN: Final = 10  # classes
HOLDERS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Size(Struct, frozen=True):
    """Figures of some Python files. All but `files` are lines."""

    files: int = 0
    lines: int = 0
    code: int = 0
    imports: int = 0
    dunder_all: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def size(folders: Iterable[Path]) -> Size:
    paths = (path for folder in folders for path in folder.rglob("*.py"))
    return sum((_size_of(path.read_text(encoding="utf-8")) for path in paths), Size())


def _size_of(text: str) -> Size:
    tree = ast.parse(text)
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return Size(
        files=1,
        lines=len(text.splitlines()),
        code=len(code - _lines(_docstrings(tree))),
        imports=len(_lines(imports)),
        dunder_all=len(_lines(_dunder_alls(tree))),
    )


def _docstrings(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, HOLDERS) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def _dunder_alls(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
                yield node


def _lines(nodes: Iterable[ast.stmt]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


class ClassSize(Struct, frozen=True, order=True):
    """`attributes`: fields, and what methods assign to `self`. `is_data`: no method waits or changes it."""

    lines: int
    attributes: int
    name: str
    path: str
    is_data: bool


def class_sizes(root: Path) -> list[ClassSize]:
    """Return all classes of the product, the longest first."""
    found = (
        _class_size(node, path.relative_to(root).as_posix())
        for folder in PRODUCT
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    return sorted(found, reverse=True)


def _class_size(node: ast.ClassDef, path: str) -> ClassSize:
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if not any(word in ast.unparse(each.annotation) for word in NO_FIELDS)
    }
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    assigned = {name for method in methods for name in _assigned(method)}
    return ClassSize(
        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        attributes=len(fields | assigned),
        name=node.name,
        path=path,
        is_data=not assigned and not any(isinstance(method, ast.AsyncFunctionDef) for method in methods),
    )


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if any(ast.unparse(decorator) == "cached_property" for decorator in method.decorator_list):
        yield method.name
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def main() -> None:
    root = Path(sys.argv[1]) if sys.argv[1:] else ROOT
    for name, folders in {"product": PRODUCT, "tests": TESTS}.items():
        found = size(root / folder for folder in folders)
        print(f"{name} ({', '.join(folders)})")
        for field in found.__struct_fields__:
            print(f"  {field:<10} {getattr(found, field):>8,}")
    print("largest classes (lines, attributes)")
    for each in class_sizes(root)[:SHOWN]:
        print(f"  {each.lines:>5} {each.attributes:>3} {each.name} in {each.path}")


if __name__ == "__main__":
    main()
