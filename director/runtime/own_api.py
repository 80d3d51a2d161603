"""Run our package `api`, or a module of it: `python -P -m director.runtime.own_api [keeper]`. It is the one beside
`director`, even if the current folder or PYTHONPATH has another `api`.
"""

import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import director

NAME: Final = "api"


def main() -> int:
    folder = Path(director.__file__).parents[1] / NAME
    if getattr(_load(folder), "PART_OF", "") != director.DISTRIBUTION:
        sys.stderr.write(
            f"director api: {folder} belongs to another program. Install Director in an environment of its own: "
            "`pipx install` or `uv tool install` makes one.\n"
        )
        return 2
    runpy.run_module(".".join([NAME, *sys.argv[1:2]]), run_name="__main__", alter_sys=True)
    return 0


def _load(folder: Path) -> ModuleType | None:
    """Make this folder what `import api` gives. Return None if it has no package."""
    spec = spec_from_file_location(NAME, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        return None
    sys.modules[NAME] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


if __name__ == "__main__":
    sys.exit(main())
