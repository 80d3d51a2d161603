"""Make the parts of the reference from the code, as Markdown. A page asks for a part with a comment such as
`<!-- made: metrics -->`. Nothing that is made is kept in the repository.
"""

import argparse
import ast
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from api.app import ROUTES
from api.web import errors
from api.web.errors import Code, Refusal
from api.web.openapi import encode_document
from api.web.reference import CHAPTERS, operation_html, operations, refusals_html, type_html
from director.broker import keys as broker_keys
from director.cli.arguments import EXIT_CODES, CommandParser
from director.cli.main import GROUPS, make_parser
from director.core.runner_config import PRESETS, preset_of
from director.core.settings import (
    ApiSettings,
    AuditSettings,
    CommonSettings,
    DirectorSettings,
    KeeperSettings,
    describe,
)
from director.core.states import END_CODES, TERMINAL, TRANSITIONS, Status, WebhookEvent
from director.core.view import PAUSED, REASONS
from director.operate.acts import ACTS
from director.operate.kinds import KINDS, Kind
from director.operate.kinds import Code as FindingCode
from director.runtime.metric_table import METRICS, Process
from director.servers.runners import outcomes
from tests.support.real_servers import kept

ROOT: Final = Path(__file__).parents[2]
MADE: Final = re.compile(r"<!-- made: ([a-z ]+?)(?: \((.+)\))? -->")
FLAG: Final = "`true` or `false`"
MANY: Final = 10  # commands that have the same option
SHARED: Final = "options-of-many-commands"
LONG: Final = 90  # characters of a command that a page shows whole
BAR: Final = re.compile(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # outside of code
PROCESSES: Final[dict[str, type[CommonSettings]]] = {
    "API": ApiSettings,
    "Director": DirectorSettings,
    "Keeper": KeeperSettings,
    "Audit": AuditSettings,
}


def filled(page: str) -> str:
    """Return a page with its made parts. Raises KeyError for a part that nothing makes."""
    return MADE.sub(lambda found: PARTS[found[1]](*([found[2]] if found[2] else [])), page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A bar in code stays as it is: Markdown looks for cells outside code."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(BAR.sub(r'&#124;', cell) for cell in line)} |" for line in lines)


# Settings


def setting_rows(process: str) -> list[tuple[str, str, str, str]]:
    """Return variable, type, default and meaning of each setting of a process; "" for those that all have."""
    cls = PROCESSES.get(process, CommonSettings)
    common = {name for name, _, _ in describe(CommonSettings)} if process else set()
    types = {field.name.upper(): field.type for field in msgspec.structs.fields(cls)}
    return [
        (name, type_name(types[name.removeprefix("DIRECTOR_")]), default, text)
        for name, default, text in describe(cls)
        if name not in common
    ]


def type_name(declared: Any) -> str:
    """Return the type of a setting in words: its bounds, or its words."""
    schema = msgspec.json.schema(declared)
    shapes = [shape for shape in schema.get("anyOf", [schema]) if shape.get("type") != "null"]
    shape = shapes[0]
    if "enum" in shape:
        return ", ".join(f"`{word}`" for word in shape["enum"])
    if "pattern" in shape and (words := re.fullmatch(r"\^\(\|?([a-z|]+)\)\$", shape["pattern"])):
        return ", ".join(f"`{word}`" for word in words[1].split("|"))
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
    bounds = [f"{sign} {shape[key]:,}" for key, sign in signs if key in shape]
    word = {"integer": "whole number", "boolean": FLAG, "array": "list, with commas", "string": "text"}
    return " ".join([word.get(shape["type"], shape["type"]), *bounds])


def settings_of(process: str = "") -> str:
    return table(
        ("variable", "type", "default", "meaning"),
        [
            (f"`{name}`", type_, f"`{default}`" if default else "", text)
            for name, type_, default, text in setting_rows(process)
        ],
    )


# Commands


@cache
def leaves() -> dict[str, CommandParser]:
    """Return each command that can be run, by its words without `director`."""
    return {
        parser.prog.removeprefix("director "): parser
        for parser in make_parser().all_of_it()
        if parser.get_default("run") is not None
    }


def option_rows(parser: CommandParser) -> list[tuple[str, str]]:
    """Return the names and the meaning of each argument."""
    rows = []
    for action in parser.arguments:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
        if action.choices:
            value = "|".join(map(str, action.choices))
        names = ", ".join(action.option_strings)
        meaning = (action.help or "") % {"default": action.default, "prog": parser.prog}
        rows.append((f"{names} {value}".strip() if names else str(value), meaning))
    return rows


def in_group(title: str) -> dict[str, CommandParser]:
    """Return the commands of a group of the help."""
    return {name: parser for name, parser in leaves().items() if name.split()[0] in GROUPS[title]}


def anchor_of(name: str) -> str:
    return f"director-{name.replace(' ', '-')}"


def command_index() -> str:
    """Return a row for each group. Each command has the anchor that it has on its own page."""
    rows = []
    for title in GROUPS:
        page = f"cli/{title.replace(' ', '-')}.md"
        families: dict[str, list[str]] = {}  # those of one word first, then a line for each word with several
        for name in in_group(title):
            several = sum(other.split()[0] == name.split()[0] for other in leaves()) > 1
            shown = f"[`{name}`]({page}#{anchor_of(name)}){{ #{anchor_of(name)} .whole }}"
            families.setdefault(name.split()[0] if several else "", []).append(shown)
        lines = [" ".join(families[word]) for word in sorted(families, key=bool)]
        rows.append((f"[{title[0].upper()}{title[1:]}]({page})", "<br>".join(lines)))
    return table(("group", "commands"), rows)


@cache
def shared_rows() -> dict[str, str]:
    """Return the options that mean the same in many commands. Their meaning is said once."""
    found = Counter(row for parser in leaves().values() for row in option_rows(parser))
    return {what: meaning for (what, meaning), times in found.items() if times >= MANY and what.startswith("-")}


def shared_options() -> str:
    return table(("option", "meaning"), [(f"`{what}`", meaning) for what, meaning in shared_rows().items()])


def commands(group: str) -> str:
    """Return the commands of a group: first a line for each, then each with its arguments and examples."""
    found = in_group(group)
    abouts = {name: f"{' '.join((parser.description or '').split()).rstrip('.')}." for name, parser in found.items()}
    lines = [
        (f"[`{name}`](#{anchor_of(name)})", about.partition(". ")[0].rstrip(".")) for name, about in abouts.items()
    ]
    parts = [table(("command", "what it does"), lines)]
    for name, parser in found.items():
        rows = dict(option_rows(parser))
        own = [(f"`{what}`", meaning) for what, meaning in rows.items() if shared_rows().get(what) != meaning]
        shared = [f"`{what.split()[0]}`" for what, meaning in rows.items() if shared_rows().get(what) == meaning]
        parts += [f"## `director {name}`", abouts[name], "```sh\n" + "\n".join(parser.examples) + "\n```"]
        parts += [table(("argument", "meaning"), own)] if own else []
        parts += [f"[Options of many commands](../cli.md#{SHARED}): {', '.join(shared)}."] if shared else []
    return "\n\n".join(parts)


def presets() -> str:
    rows = [(f"`{name}`", f"{preset_of(name)['about']} (runner `{preset_of(name)['kind']}`)") for name in PRESETS]
    return table(("preset", "for"), rows)


# Words of the page for what the tests try with each server
TRIED: Final = {
    "runs": "runs",
    "streams": "streams",
    "cancel": "a cancel frees its slot",
    "errors": "errors in its own words",
    "overload": "overload",
    "death": "death",
}


def real_servers() -> str:
    """Show what was found of each server, with its command."""
    shown = "\n\n".join(
        f"**{row.name}**, ready after {row.found['ready'].removeprefix('yes, ')}. {unlike(row.found)} "
        f"Tried on {row.date} with {', '.join(f'`{each}`' for each in row.packages)}:\n\n"
        f"```sh\n{wrapped(row.command)}\n```"
        for row in kept()
    )
    return f"Each was tried: {', '.join(TRIED.values())}.\n\n{shown}"


def wrapped(command: str) -> str:
    return command if len(command) <= LONG else command.replace(" --command ", " \\\n  --command ")


def unlike(found: Mapping[str, str]) -> str:
    """Return sentences: what did not work or was not tried."""
    told = [
        f"Not tried: {name}."
        if found[key] == "–"
        else f"Not so: {name}. {found[key].removeprefix('no: ')[:1].upper()}{found[key].removeprefix('no: ')[1:]}."
        for key, name in TRIED.items()
        if found[key] != "yes"
    ]
    return " ".join(told) or "All of it worked."


def exit_codes() -> str:
    return table(("code", "meaning"), [(f"`{code}`", text) for code, text in EXIT_CODES.items()])


# Metrics


def metrics() -> str:
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        by = "all" if metric.by == get_args(Process) else ", ".join(metric.by)
        rows.append((f"`{metric.name}`", metric.kind, labels, by, metric.what))
    return table(("metric", "type", "labels", "of", "meaning"), rows)


# Codes and statuses


def documented_keys() -> dict[str, str]:
    """Return what is said below each key of Redis, by the name of its function."""
    body = ast.parse(inspect.getsource(broker_keys)).body
    found = {each.name: ast.get_docstring(each) or "" for each in body if isinstance(each, ast.FunctionDef)}
    for each, after in pairwise(body):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and isinstance(after, ast.Expr):
            found[each.targets[0].id] = inspect.cleandoc(ast.literal_eval(after.value))
    return {name: said for name, said in found.items() if getattr(broker_keys, name, None) in broker_keys.GROWTH}


def growth(who: str) -> str:
    """Return a table of the keys that this role makes grow."""
    said = documented_keys()
    rows = [
        (f"`{name}`", said[name].partition(". ")[0].replace("\n", " "), how.partition(": ")[2])
        for name in said
        for how in [broker_keys.GROWTH[getattr(broker_keys, name)]]
        if how.partition(": ")[0] == who
    ]
    return table(("key", "what it has", "bound"), rows)


def texts_below(cls: type) -> dict[str, str]:
    """Return the text below each member of an enumeration."""
    [declared] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(declared, ast.ClassDef)
    found = {}
    for member, text in pairwise(declared.body):
        match member, text:
            case ast.Assign([ast.Name(name)]), ast.Expr(ast.Constant(str(words))):
                found[str(getattr(cls, name))] = " ".join(words.split())
    return found


@cache
def statuses_of_codes() -> dict[str, set[int]]:
    """Return the HTTP statuses of the refusals with each code."""
    refusals = [each for each in vars(errors).values() if isinstance(each, Refusal)]
    given = [(each.code, each.status) for each in (*refusals, *errors.QUEUE_REFUSALS.values())]
    header = errors.invalid_header("", "").document  # it is made where it is raised
    found: dict[str, set[int]] = {}
    for code, status in (*given, (header.code, header.status)):
        if code is not None:
            found.setdefault(str(code), set()).add(status)
    return found


def api_codes() -> str:
    texts, statuses = texts_below(Code), statuses_of_codes()
    return table(
        ("code", "status", "meaning, and what to do"),
        [(f"`{code}`", ", ".join(map(str, sorted(statuses[code]))), texts[code]) for code in Code],
    )


def end_codes() -> str:
    return table(("code", "meaning"), [(f"`{code}`", text) for code, text in sorted(END_CODES.items())])


def statuses() -> str:
    texts = texts_below(Status)
    rows = [
        (
            f"`{status}`",
            texts[status],
            "yes" if status in TERMINAL else "",
            ", ".join(f"`{following}`" for following in Status if following in TRANSITIONS[status]),
        )
        for status in Status
    ]
    return table(("status", "meaning", "terminal", "may be followed by"), rows)


def reasons() -> str:
    """Why a prediction waits. The other texts of the table are details of a reason."""
    details = {*PAUSED.values(), "overloaded"}
    return table(
        ("reason", "meaning"),
        [
            (f"`{reason}`", text.replace("{}", "…").replace("….", "…"))
            for reason, text in REASONS.items()
            if reason not in details
        ],
    )


GAP: Final = re.compile(r"{(\w+)(?::[^}]*)?}")


def findings() -> str:
    """The texts of findings have gaps for names and figures. Of a detail, only sentences without a gap are shown."""

    def said(kind: Kind) -> str:
        title = GAP.sub(r"\1", kind.title)
        whole = [each for each in kind.detail.rstrip(".").split(". ") if not GAP.search(each)]
        return ". ".join([title[0].upper() + title[1:], *whole]) + "."

    def acts(code: FindingCode) -> str:
        found = ACTS[code]
        return f"none: {found}" if isinstance(found, str) else ", ".join(act.label for act in found)

    return table(
        ("code", "level", "meaning", "who can act", "command", "button", "doctor's line", "alert"),
        [
            (
                f"`{code}`",
                kind.level,
                said(kind),
                kind.who,
                f"`{GAP.sub(lambda gap: gap[1].upper(), kind.ask)}`",
                acts(code),
                kind.check,
                f"`{kind.alert}`",
            )
            for code, kind in KINDS.items()
        ],
    )


def webhook_events() -> str:
    return table(("event", "sent"), [(f"`{event}`", text) for event, text in texts_below(WebhookEvent).items()])


# The HTTP API


@cache
def document() -> dict[str, Any]:
    return msgspec.json.decode(encode_document("", ROUTES), type=dict[str, Any])


def http(chapter: str) -> str:
    return "\n\n".join(
        f'## {each.summary} {{ #{each.name} }}\n\n<div class="operation">\n'
        f"{operation_html(each, types='types.html', refusals='../http-api.html')}\n</div>"
        for each in operations(document(), CHAPTERS[chapter])
    )


def types() -> str:
    return "\n\n".join(
        f'## {name} {{ #type-{name} }}\n\n<div class="operation">\n{type_html(schema)}\n</div>'
        for name, schema in sorted(document()["components"]["schemas"].items())
    )


def refusals() -> str:
    return f'<div class="operation">\n{refusals_html(document())}\n</div>'


# The drawing of the statuses: places by hand, arrows from the table

PLACES: Final = {
    Status.STARTING: (57, 110),
    Status.PROCESSING: (206, 110),
    Status.SUCCEEDED: (383, 30),
    Status.FAILED: (383, 83),
    Status.CANCELED: (383, 137),
    Status.ABORTED: (383, 190),
}
WIDE: Final = 110
HIGH: Final = 34


def state_diagram() -> str:
    """Return the statuses and their transitions as SVG. It takes the colours of the page."""
    boxes = "".join(
        f'<rect x="{x - WIDE / 2}" y="{y - HIGH / 2}" width="{WIDE}" height="{HIGH}" rx="8"/>'
        f'<text x="{x}" y="{y + 5}">{escape(status)}</text>'
        for status, (x, y) in PLACES.items()
    )
    arrows = "".join(
        arrow(before, after) for before, following in TRANSITIONS.items() for after in Status if after in following
    )
    label = "; ".join(f"{before} to {', '.join(sorted(after))}" for before, after in TRANSITIONS.items() if after)
    return (
        f'<svg class="states" viewBox="0 0 440 218" role="img" aria-label="{escape(label)}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z"/></marker></defs>{arrows}{boxes}</svg>'
    )


def arrow(before: Status, after: Status) -> str:
    (x, y), (to_x, to_y) = PLACES[before], PLACES[after]
    if (before, after) == (Status.PROCESSING, Status.STARTING):
        path = f"M{x} {y + HIGH / 2} C{x} {y + 50} {to_x} {y + 50} {to_x} {to_y + HIGH / 2 + 2}"
    elif before is Status.STARTING and after is not Status.PROCESSING:
        is_up = to_y < y
        side = y - HIGH / 2 if is_up else y + HIGH / 2
        path = f"M{x + 20} {side} C{x + 50} {to_y} {x + 110} {to_y} {to_x - WIDE / 2} {to_y + (4 if is_up else -4)}"
    else:
        path = f"M{x + WIDE / 2} {y} L{to_x - WIDE / 2} {to_y}"
    return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'


def outcomes_seen() -> str:
    """Return the table by which runners decide what an answer means."""
    rows = []
    for seen, rule in outcomes.TABLE.items():
        asks = f"asks: {rule.outcome}, or {rule.if_unready}" if rule.if_unready else str(rule.outcome)
        rows.append((seen, asks, rule.why))
    return table(("what was seen", "outcome", "why"), rows)


PARTS: Final[dict[str, Callable[..., str]]] = {
    "growth": growth,
    "settings": settings_of,
    "command index": command_index,
    "shared options": shared_options,
    "commands": commands,
    "exit codes": exit_codes,
    "presets": presets,
    "real servers": real_servers,
    "metrics": metrics,
    "api codes": api_codes,
    "end codes": end_codes,
    "outcomes": outcomes_seen,
    "statuses": statuses,
    "webhook events": webhook_events,
    "reasons": reasons,
    "findings": findings,
    "http": http,
    "types": types,
    "refusals": refusals,
    "state diagram": state_diagram,
}
