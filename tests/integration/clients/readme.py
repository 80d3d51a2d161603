"""Run the examples in the READMEs of official clients unchanged, except for the names of models and files.

An example that cannot run is left out by name and with a reason, so that none is forgotten.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tests.integration.clients.conftest import Caller
from tests.support.models import CAPTIONER, DREAMER, PAINTER, SKETCHER, WRITER, ModelUnderTest

__all__ = ("Example", "accounted_for", "adapted", "block_of", "examples_in")

BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
VERSION: Final = r"[0-9a-f]{64}"

# a model that the examples name → our model that does the same
STANDS_FOR: Final[Mapping[str, ModelUnderTest]] = {
    "acmecorp/acme-model": PAINTER,
    "afiaka87/laionide-v4": SKETCHER,
    "ai-forever/kandinsky-2.2": PAINTER,
    "andreasjansson/blip-2": CAPTIONER,
    "anthropic/claude-4.5-sonnet": WRITER,
    "black-forest-labs/flux-dev": PAINTER,
    "black-forest-labs/flux-schnell": PAINTER,
    "bytedance/seedream-4": PAINTER,
    "jingyunliang/swinir": SKETCHER,
    "kvfrans/clipdraw": SKETCHER,
    "meta/llama-2-70b-chat": WRITER,
    "meta/meta-llama-3-70b-instruct": WRITER,
    "nightmareai/real-esrgan": PAINTER,
    "pixray/text2image": DREAMER,
    "replicate/hello-world": CAPTIONER,
    "stability-ai/sdxl": PAINTER,
    "stability-ai/stable-diffusion": PAINTER,
    "stability-ai/stable-diffusion-3": CAPTIONER,
}


class Example(Struct, frozen=True, kw_only=True):
    """An example that can run. `has`: words that only its block has. `instead`: replacements for what the service
    lacks.
    """

    has: str
    instead: Mapping[str, str] = {}
    before: str = ""
    holds: str


def examples_in(text: str, *languages: str) -> list[str]:
    """Return the code of the README's blocks in these languages."""
    return [code for language, code in BLOCK.findall(text) if language in languages]


def accounted_for(blocks: Sequence[str], examples: Sequence[Example], left_out: Mapping[str, str]) -> list[str]:
    """Return the blocks that are neither an example nor left out, and the words found in no block or in two."""
    words = [*(example.has for example in examples), *left_out]
    unknown = [block for block in blocks if not any(_is_in(word, block) for word in words)]
    return unknown + [word for word in words if sum(_is_in(word, block) for block in blocks) != 1]


def block_of(example: Example, blocks: Sequence[str]) -> str:
    """Return the code of the example's block."""
    return next(block for block in blocks if _is_in(example.has, block))


def _is_in(words: str, block: str) -> bool:
    return words in f"\n{block}"


def adapted(code: str, caller: Caller, instead: Mapping[str, str]) -> str:
    """Return the code with our models in place of its own. A version alone becomes that of the model beside it."""
    model = PAINTER
    for name in sorted(STANDS_FOR, key=len, reverse=True):
        ours = STANDS_FOR[name]
        code, pinned = re.subn(rf"{re.escape(name)}:{VERSION}", ours.ref, code)
        code, named = re.subn(rf"(?<=[\"']){re.escape(name)}(?=[\"'])", ours.name, code)
        if pinned or named:
            model = ours
    code = re.sub(rf"(?<=[\"']){VERSION}(?=[\"'])", model.version, code)
    for theirs, told in instead.items():
        code = code.replace(theirs, told)
    return code.replace("your-username", caller.account)
