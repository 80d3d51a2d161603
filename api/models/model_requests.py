"""Read what is said of a model: the bodies that make one and change it, and how much each may hold."""

import re
from collections.abc import Mapping
from typing import Final, get_args

from api.members import Members
from api.refusals import invalid_input
from director.core.ids import MODEL_NAME
from director.store.models import Visibility

__all__ = ("MADE_WITH", "SAID", "parse_change", "parse_make")

URL: Final = re.compile(r"https?://[^\s/]\S*")
SKU: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE: Final = "a-z, 0-9, '.', '_' and '-', at most 64 characters, and must begin with a letter or a digit"
VISIBILITIES: Final = ", ".join(f'"{word}"' for word in get_args(Visibility))

# member -> most characters
TEXTS: Final = {"description": 5_000, "readme": 100_000}
URLS: Final = ("github_url", "paper_url", "weights_url", "license_url", "cover_image_url")
MOST_URL: Final = 2_000

MADE_WITH: Final = frozenset({"description", "github_url", "paper_url", "license_url", "cover_image_url"})
SAID: Final = frozenset({"description", "readme", "github_url", "paper_url", "weights_url", "license_url"})


def parse_make(body: bytes) -> tuple[str, dict[str, str]]:
    """The name "owner/name" of a new model, and what is said of it."""
    members = Members(body)
    owner, name = members.text("owner", required=True), members.text("name", required=True)
    for field, given in (("owner", owner), ("name", name)):
        if given is not None and not re.fullmatch(MODEL_NAME, f"{given}/x"):
            members.fault("pattern", field, f"May hold {NAME_RULE}")
    said = {"visibility": _visibility(members), "hardware": _hardware(members)} | _said(members, MADE_WITH)
    members.refuse_unknown(MADE_WITH | {"owner", "name", "visibility", "hardware"})
    if members.faults:
        raise invalid_input(members.faults)
    return f"{owner}/{name}", {field: text for field, text in said.items() if text}


def parse_change(body: bytes) -> Mapping[str, str]:
    """What is said of a model from now on; '' takes back what was."""
    members = Members(body)
    said = _said(members, SAID)
    members.refuse_unknown(SAID)
    if members.faults:
        raise invalid_input(members.faults)
    return said


def _said(members: Members, fields: frozenset[str]) -> dict[str, str]:
    given = {field: text for field in sorted(fields) if (text := members.text(field)) is not None}
    for field, text in given.items():
        most = TEXTS.get(field, MOST_URL)
        if len(text) > most:
            members.fault("string_lte", field, f"String length must be less than or equal to {most}")
        elif field in URLS and text and not URL.fullmatch(text):
            members.fault("format", field, "Must be an http or https URL")
    return given


def _visibility(members: Members) -> str:
    given = members.text("visibility", required=True)
    if given is not None and given not in get_args(Visibility):
        members.fault("enum", "visibility", f"visibility must be one of the following: {VISIBILITIES}")
    return given or ""


def _hardware(members: Members) -> str:
    """Any name of one: what runs a model is its director, wherever that was started."""
    given = members.text("hardware", required=True)
    if given is not None and not SKU.fullmatch(given):
        members.fault("pattern", "hardware", "Must be the name of a hardware, such as cpu or gpu-t4")
    return given or ""
