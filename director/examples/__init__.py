"""The models that `director up` serves, so that there is something to ask before you bring your own.

Each folder is a complete Cog model: `cog build` works in it as it stands. `.cog/openapi_schema.json` is what that
build would write; Cog's server checks no input without it. This module never imports a predictor: Cog does, in a
process of its own.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct

__all__ = ("EXAMPLES", "Example")


class Example(Struct, frozen=True, kw_only=True):
    """A folder to start `python -m cog.server.http` in, with `COG_PREDICT_TYPE_STUB` set to `predict`."""

    name: str
    folder: Path
    predict: str
    description: str

    @property
    def schema_file(self) -> Path:
        """The OpenAPI document that Cog's server reads, relative to the folder it is started in."""
        return self.folder / ".cog" / "openapi_schema.json"

    @property
    def predictor_file(self) -> Path:
        """The source that holds the predictor: the part of `predict` before the colon."""
        return self.folder / self.predict.partition(":")[0]


HERE: Final = Path(__file__).parent

EXAMPLES: Final[dict[str, Example]] = {
    example.name: example
    for example in (
        Example(
            name="example/hello",
            folder=HERE / "hello",
            predict="predict.py:Predictor",
            description="Says a text n times, one string after another.",
        ),
        Example(
            name="example/thumbnail",
            folder=HERE / "thumbnail",
            predict="predict.py:Predictor",
            description="Makes a picture smaller.",
        ),
    )
}
