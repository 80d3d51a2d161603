"""How files of a store are named: those of outputs after whose they are and their bytes, callers' ones after their id.

Pure. A name of an output is that of its bytes, so that putting it twice is putting it once.
"""

import hashlib
import re
from typing import Final

from msgspec import Struct

from director.core.ids import FileId, PredictionId, is_file_id, is_prediction_id

__all__ = ("CallerFileName", "FileName", "StoredName", "ending_of", "file_name", "name_of")

NAME: Final = re.compile(r"([0-9a-z]{26})-([0-9a-f]{32})\.([a-z0-9]{1,8})")
CALLER_NAME: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})/([0-9a-z]{26})\.([a-z0-9]{1,8}|part~)")
# Endings that are not the media type's own second half
ENDINGS: Final = {
    "application/octet-stream": "bin",
    "audio/mpeg": "mp3",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "model/gltf-binary": "glb",
    "text/markdown": "md",
    "text/plain": "txt",
    "video/quicktime": "mov",
}


class FileName(Struct, frozen=True):
    """The public name of a file: whose it is, and which. Its ending is for people."""

    prediction_id: PredictionId
    digest: str
    ending: str

    def __str__(self) -> str:
        return f"{self.prediction_id}-{self.digest}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "FileName | None":
        """None for what is no name of ours: nothing else ever becomes a path."""
        found = NAME.fullmatch(text)
        if found is None or not is_prediction_id(found[1]):
            return None
        return cls(PredictionId(found[1]), found[2], found[3])


class CallerFileName(Struct, frozen=True):
    """The name of a caller's file in the store. Its ending is that of the name it came with: models go by it."""

    account: str
    id: FileId
    ending: str

    def __str__(self) -> str:
        return f"{self.account}/{self.id}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "CallerFileName | None":
        """None for what is no name of ours."""
        found = CALLER_NAME.fullmatch(text)
        if found is None or not is_file_id(found[2]):
            return None
        return cls(found[1], FileId(found[2]), found[3])


StoredName = FileName | CallerFileName


def file_name(prediction_id: PredictionId, data: bytes, *, content_type: str) -> FileName:
    """The name that these bytes have among the prediction's files."""
    return name_of(prediction_id, hashlib.sha256(data).hexdigest(), content_type=content_type)


def name_of(prediction_id: PredictionId, digest: str, *, content_type: str) -> FileName:
    """The same, of what is known to have this SHA-256."""
    kind = content_type.partition(";")[0]
    own = kind.rpartition("/")[2].removeprefix("x-")
    ending = ENDINGS.get(kind) or (own if re.fullmatch(r"[a-z0-9]{1,8}", own) else "bin")
    return FileName(prediction_id, digest[:32], ending)


def ending_of(shown: str) -> str:
    """The ending to keep of the name that a caller gave a file."""
    own = shown.rpartition(".")[2].lower()
    return own if re.fullmatch(r"[a-z0-9]{1,8}", own) and "." in shown else "bin"
