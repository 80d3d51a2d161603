"""Read what a server with OpenAI's API answers, piece by piece, and put the pieces together. Pure.

A piece is the data of one event of a stream, or a whole answer. Members of other types than OpenAI's are skipped.
"""

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from director.core.nesting import MOST_LEVELS, is_deeper
from director.servers.runners import answers
from director.servers.runners.answers import BEYOND_JSON, Unreadable

# Reasons to finish a text that is no answer: vLLM's and SGLang's engines, OpenRouter
FAILURES: Final = frozenset({"error", "abort", "aborted", "failed"})
# A piece without choices is an error by the word in one of these fields, or if one of the others has anything
KINDS_OF_PIECE: Final = ("object", "type", "status")
ERRORS: Final = ("errors", "error_code")
# Members of a message beside its text. Those that a caller cannot do without make the answer an object
BESIDE_TEXT: Final = ("tool_calls", "function_call", "refusal", "audio")
REASONING: Final = ("reasoning_content", "reasoning")  # two names of the same text; the first that is there is used

SILENT: Final = "The model failed without saying why"


class Piece(Struct, frozen=True, kw_only=True):
    """`data`: as it came. `is_legible`: each reader of JSON can read it. `found`: the same decoded. `choices`: those
    that are objects. `text` and `reasoning`: of the first choice. `says`: any choice has text, reasoning, a tool call
    or the like. `begun`, `finished`: the indexes of its choices, and of those with a reason to finish. `is_more`: than
    one text. `tokens`: by the metric that has them.
    """

    data: bytes
    is_legible: bool = True
    found: dict[str, Any] = msgspec.field(default_factory=dict)
    choices: list[dict[str, Any]] = msgspec.field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    says: bool = False
    begun: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    is_more: bool = False
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    code: int = 0

    @property
    def is_usage_alone(self) -> bool:
        return not self.found.get("choices") and bool(self.found.get("usage"))

    @property
    def is_role(self) -> bool:
        """Return whether each choice says who speaks, and nothing else. Servers begin a chat so, before its prefill."""
        return bool(self.choices) and not self.says and all(map(_is_role, self.choices))


def read_piece(data: bytes) -> Piece:
    """Raises Unreadable for data that is no object."""
    data, found, is_legible = _read_object(data)
    choices = _choices_in(found)
    if error := found.get("error") or next((said for choice in choices if (said := choice.get("error"))), None):
        return _as_failure(data, error)
    if not choices and _is_error_itself(found):
        return _as_failure(data, found)
    text = reasoning = ""
    says = is_more = False
    finished = set[int]()
    for choice in choices:
        index = _index_of(choice)
        is_first = not index
        said = _message_in(choice)
        own = _text_in(said.get("content")) if said is not None else choice.get("text")
        own = own if isinstance(own, str) else ""
        thought = _reasoning_in(said) if said is not None else ""
        beside = said is not None and any(said.get(name) for name in BESIDE_TEXT)
        finish = choice.get("finish_reason")
        if isinstance(finish, dict):  # SGLang's own
            finish = finish.get("type")
        if f"{finish}".lower() in FAILURES:
            return Piece(data=data, error=f"The model server ended the text with the reason {finish!r}")
        if finish:
            finished.add(index)
        if is_first:
            text, reasoning = text or own, reasoning or thought
        says = says or bool(own or thought or beside)
        is_more = is_more or beside or not is_first
    return Piece(
        data=data,
        is_legible=is_legible,
        found=found,
        choices=choices,
        text=text,
        reasoning=reasoning,
        says=says,
        begun=frozenset(map(_index_of, choices)),
        finished=frozenset(finished),
        is_more=is_more,
        tokens=counts_in(found.get("usage")),
    )


def read_error_event(data: bytes) -> Piece:
    """Read the data of an `error` event, whatever shape it has."""
    try:
        found = _decode(data)
    except (ValueError, RecursionError):
        return Piece(data=data, error=answers.excerpt(data) or SILENT)
    return _as_failure(data, (found.get("error") if isinstance(found, dict) else None) or found or SILENT)


def counts_in(usage: Any) -> dict[str, int]:
    """Return the tokens that a server reports, by the metric that has them."""
    if not isinstance(usage, dict):
        return {}
    found = {
        "input_tokens": _count(usage, "prompt_tokens"),
        "output_tokens": _count(usage, "completion_tokens"),
        "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens") or None,  # none is no figure
    }
    return {name: count for name, count in found.items() if count is not None}


def _count(found: Any, name: str) -> int | None:
    count = found.get(name) if isinstance(found, dict) else None
    is_count = isinstance(count, int) and not isinstance(count, bool) and answers.fits(count)
    return count if is_count else None


def _read_object(data: bytes) -> tuple[bytes, dict[str, Any], bool]:
    """Return an object, its bytes and whether they are legible. Raises Unreadable."""
    try:
        if not answers.HUGE.search(data):
            found = answers.read_json(data, dict[str, Any])
            return bytes(answers.read_document(data)) if answers.HALF_PAIR.search(data) else data, found, True
    except Unreadable:
        pass
    try:
        lenient = _decode(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable(answers.TOO_DEEP if isinstance(exc, RecursionError) else f"not JSON: {exc}") from exc
    if not isinstance(lenient, dict):
        raise Unreadable("not of the expected shape: it is no object")
    return data, lenient, False


def _decode(data: bytes) -> Any:
    """Return JSON with the numbers that it lacks as None. One beyond a double is infinite, however many digits it has.
    Raises ValueError, RecursionError.
    """
    if is_deeper(data, MOST_LEVELS):
        raise RecursionError
    return json.loads(data, parse_constant=lambda name: None, parse_int=_number)


def _number(text: str) -> int | float:
    return int(text) if len(text) < answers.MANY_DIGITS else float(text)


def encode(value: Any) -> Raw:
    """Raises Unreadable for a number that is no JSON, and for what is nested too deeply."""
    try:
        return Raw(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except RecursionError as exc:
        raise Unreadable(answers.TOO_DEEP) from exc
    except ValueError as exc:
        raise Unreadable(f"{BEYOND_JSON}: {exc}") from exc


def legible(piece: Piece) -> Raw:
    """Return the bytes of a piece as each reader of JSON can read them: those that came, if that can be. Raises
    Unreadable.
    """
    return Raw(piece.data) if piece.is_legible else encode(piece.found)


def _index_of(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _choices_in(found: dict[str, Any]) -> list[dict[str, Any]]:
    choices = found.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _is_role(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict) or not delta.get("role"):
        return False
    return not any(
        value
        for each, own in ((delta, ("role",)), (choice, ("delta", "index")))
        for name, value in each.items()
        if name not in own
    )


def _message_in(choice: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a choice says: its delta, or its message in an answer that is not streamed."""
    delta = choice.get("delta")
    if delta and isinstance(delta, dict):
        return delta
    message = choice.get("message")
    return message if message and isinstance(message, dict) else None


def _text_in(content: Any) -> str:
    """Return the text of a content: a string, or a list of parts of which some are text."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _reasoning_in(said: dict[str, Any]) -> str:
    return next((text for name in REASONING if (text := said.get(name)) and isinstance(text, str)), "")


def _is_error_itself(found: dict[str, Any]) -> bool:
    """Whether a piece without choices is an error by itself, as FastChat and older vLLMs send it."""
    return any(f"{found.get(name)}".lower() in FAILURES for name in KINDS_OF_PIECE) or any(
        found.get(name) for name in ERRORS
    )


def _as_failure(data: bytes, error: Any) -> Piece:
    why, code = _words_of(error)
    return Piece(data=data, error=why or SILENT, code=code)


def _words_of(error: Any) -> tuple[str, int]:
    """Return the words of an error of any shape, and its own status, or 0."""
    if isinstance(error, str):
        return answers.one_line(error), 0
    try:
        said = answers.excerpt(json.dumps(error).encode())
    except RecursionError:
        said = ""
    if not isinstance(error, dict):
        return said, 0
    named = ("message", "detail", "error", "msg", "text")
    words = next((error[name] for name in named if isinstance(error.get(name), str)), "")
    codes = (f"{error.get(name)}" for name in ("code", "status", "status_code", "http_status_code"))
    code = next((int(code) for code in codes if len(code) == 3 and code.isdecimal() and code.isascii()), 0)
    return answers.one_line(words) or said, code


# Put the pieces of an answer together

# Texts that come in pieces. Any other is whole each time
GROWING: Final = frozenset(
    {"content", "text", "arguments", "refusal", "reasoning", "reasoning_content", "data", "transcript"}
)
MERGED: Final = 64
OF_CHUNK: Final = ".chunk"  # the end of an `object` that is a piece of a stream


def merge(parts: Sequence[Any], name: str = "") -> Any:
    """Return what deltas add up to, the first one first: texts follow each other, and items of a list go by their
    `index`. Of anything else the last one counts.
    """
    parts = [part for part in parts if part is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    kinds = set(map(type, parts))
    if kinds == {str}:
        return "".join(parts) if name in GROWING else next((part for part in reversed(parts) if part), "")
    if kinds == {dict}:
        names = dict.fromkeys(chain.from_iterable(parts))
        return {key: merge([part[key] for part in parts if key in part], key) for key in names}
    if kinds == {list}:
        return _merge_lists(parts)
    return parts[-1]


def _merge_lists(parts: Sequence[list[Any]]) -> list[Any]:
    found, places = list[list[Any]](), dict[Any, int]()
    for item in chain.from_iterable(parts):
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int):
            found.append([item])
        elif index in places:
            found[places[index]].append(item)
        else:
            places[index] = len(found)
            found.append([item])
    return [merge(items) for items in found]


class Pile:
    """Deltas of one choice, in order. They are merged as they come: `MERGED` at once, then neighbours of the same size.
    So each text is copied a few times, and not once for each token after it.
    """

    def __init__(self) -> None:
        self._deltas: list[dict[str, Any]] = []
        self._parts: list[tuple[int, dict[str, Any]]] = []

    def add(self, delta: dict[str, Any]) -> None:
        self._deltas.append(delta)
        if len(self._deltas) < MERGED:
            return
        size, part = 1, merge(self._deltas)
        self._deltas.clear()
        while self._parts and self._parts[-1][0] <= size:
            before, earlier = self._parts.pop()
            size, part = before + size, merge([earlier, part])
        self._parts.append((size, part))

    def merge_all(self) -> dict[str, Any]:
        found: dict[str, Any] = merge([*(part for _, part in self._parts), *self._deltas])
        return found


class Assembly:
    """The answer that the pieces of a stream add up to, as OpenAI's API gives it where it is not streamed."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, Pile] = {}
        self._is_too_deep = False

    def add(self, piece: Piece) -> None:
        for name, value in piece.found.items():
            if value is not None or name not in self._head:
                self._head[name] = value
        try:
            for choice in piece.choices:
                index = _index_of(choice)
                own = {name: value for name, value in choice.items() if name not in ("delta", "message")}
                own |= {"index": index, "message": _message_in(choice) or {}}
                self._choices.setdefault(index, Pile()).add(own)
        except RecursionError:
            self._is_too_deep = True

    def choices(self) -> list[dict[str, Any]]:
        """Raises Unreadable."""
        try:
            found = [self._choices[index].merge_all() for index in sorted(self._choices)]
        except RecursionError:
            self._is_too_deep = True
        if self._is_too_deep:
            raise Unreadable(answers.TOO_DEEP)
        return [_without(choice, "message") if is_text(choice) else choice for choice in found]

    def whole(self) -> Raw | None:
        """Return the answer with all that the pieces had, or None if none came. Raises Unreadable."""
        if not self._head:
            return None
        kind = self._head.get("object")
        head = self._head | ({"object": kind.removesuffix(OF_CHUNK)} if isinstance(kind, str) else {})
        return encode(head | {"choices": [_as_answered(choice) for choice in self.choices()]})


def is_text(choice: dict[str, Any]) -> bool:
    """Whether a choice is one of completions, which have no message."""
    return not choice.get("message") and "text" in choice


def _as_answered(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice as it is where it is not streamed: only deltas of tool calls have an index."""
    calls = choice["message"].get("tool_calls") if "message" in choice else None
    if not isinstance(calls, list):
        return choice
    plain = [_without(call, "index") if isinstance(call, dict) else call for call in calls]
    return choice | {"message": choice["message"] | {"tool_calls": plain}}


def _without(found: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != name}


def says_anything(choice: dict[str, Any]) -> bool:
    if is_text(choice):
        return bool(choice["text"])
    return any(value for name, value in choice["message"].items() if name != "role")


# Embeddings


class _Vector(Struct):
    embedding: Raw
    index: int = 0


class _Embedded(Struct):
    data: list[_Vector]
    usage: Any = None


def read_vectors(document: Raw) -> tuple[list[Raw], dict[str, int]]:
    """Return the vectors of an answer in their order, and the tokens that it reports. Raises Unreadable."""
    found = answers.read_json(bytes(document), _Embedded)
    vectors = sorted(found.data, key=lambda vector: vector.index)
    return [vector.embedding for vector in vectors], counts_in(found.usage)
