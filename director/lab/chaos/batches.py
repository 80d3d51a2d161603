"""Make batches of OpenAI's API, read them once all is at rest, and judge them: I31."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from director.lab.chaos.calls import PAUSE_S, TRY_S, encode_call
from director.lab.chaos.evidence import Evidence, Findings, depends_on
from director.lab.chaos.journal import Batched, Journal, now_ms, read
from director.lab.chaos.plan import batch
from director.lab.chaos.wire import Answer, Caller, Unanswered

BATCHES: Final = "/openai/v1/batches"
FILES: Final = "/openai/v1/files"
ENDPOINT: Final = "/v1/chat/completions"
BORDER: Final = "chaos-batch"
MADE_S: Final = 120.0  # until its create is answered: the faults are over by then
BEFORE_MS: Final = 1_000
# Codes of ends that faults alone explain: the plan's lines succeed otherwise
BY_FAULTS: Final = frozenset({"director_lost", "refused", "server_lost", "timed_out", "too_many_claims"})


async def make(api: Caller, key: str, token: str, *, seed: int, tenant: int, journal: Journal) -> None:
    """Upload the lines and create the batch, again and again until both are answered. Raises TimeoutError."""
    orders = list(batch(seed, key))
    lines = [
        {"custom_id": tag, "method": "POST", "url": ENDPOINT, "body": msgspec.Raw(encode_call(order, tag))}
        for tag, order in zip(name_lines(key, len(orders)), orders, strict=True)
    ]
    with anyio.fail_after(MADE_S):
        content = b"\n".join(map(msgspec.json.encode, lines))
        uploaded = await _post(api, FILES, token, key, _form(content), f"multipart/form-data; boundary={BORDER}")
        asked = {"input_file_id": uploaded["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        made = await _post(api, BATCHES, token, key, msgspec.json.encode(asked), "application/json")
    journal.write(Batched(at=now_ms(), id=made["id"], key=key, tenant=tenant, total=len(lines)))


def name_lines(key: str, total: int) -> list[str]:
    return [f"{key}-{number}" for number in range(total)]


async def _post(api: Caller, path: str, token: str, key: str, body: bytes, content_type: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}", "idempotency-key": key, "content-type": content_type}
    while True:
        with suppress(Unanswered):
            answer = await api.ask("POST", path, body, headers=headers, within_s=TRY_S)
            if answer.status == 200:
                return _decode(answer)
        await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries, plans nothing


def _form(content: bytes) -> bytes:
    parts = (b'name="purpose"\r\n\r\nbatch', b'name="file"; filename="lines.jsonl"\r\n\r\n' + content)
    heads = (f"--{BORDER}\r\nContent-Disposition: form-data; ".encode() + part for part in parts)
    return b"\r\n".join([*heads, f"--{BORDER}--\r\n".encode()])


async def look_at_all(url: str, tokens: Sequence[str], folder: Path) -> None:
    """Read each batch that was made, with its files. A batch that cannot be read has no status."""
    made = [line for line in read(folder / "client.jsonl") if isinstance(line, Batched)]
    with closing(Journal(folder / "batches.jsonl")) as journal, closing(Caller(url)) as api:
        for each in made:
            with suppress(Unanswered):
                journal.write(await _look_at(api, each, {"authorization": f"Bearer {tokens[each.tenant]}"}))


async def _look_at(api: Caller, made: Batched, headers: dict[str, str]) -> Batched:
    shown = _decode(await api.ask("GET", f"{BATCHES}/{made.id}", headers=headers, within_s=TRY_S))
    files: list[list[tuple[str, str]]] = []
    for file_id in (shown.get("output_file_id"), shown.get("error_file_id")):
        path = f"{FILES}/{file_id}/content"
        content = (await api.ask("GET", path, headers=headers, within_s=TRY_S)).body if file_id else b""
        lines = map(msgspec.json.decode, content.splitlines())
        files.append([(line["custom_id"], (line["response"] or {}).get("request_id") or "") for line in lines])
    counts = shown.get("request_counts", {})
    return msgspec.structs.replace(
        made, at=now_ms(), status=shown.get("status", ""), counts=counts, output=files[0], errors=files[1]
    )


def _decode(answer: Answer) -> dict[str, Any]:
    return msgspec.json.decode(answer.body, type=dict[str, Any])


def batches_are_exact(evidence: Evidence) -> Findings:
    """I31: every batch is completed, with each of its lines once in one of its two files, and its counts are those of
    the files. A line runs again, or fails, only if a fault hit its run: what was done is not done again.
    """
    for batch_id, each in evidence.batches.items():
        yield from ((batch_id, what) for what in _find_inexact(each))
        yield from ((batch_id, what) for what in _find_failed(evidence, each))
        yield from _find_run_again(evidence, each)


def _find_inexact(each: Batched) -> Iterator[str]:
    if each.status != "completed":
        yield f"it is {each.status or 'unknown'} at rest"
        return
    written = Counter(name for name, _ in (*each.output, *each.errors))
    names = name_lines(each.key, each.total)
    yield from (f"its files have {name}, which is no line of it" for name in sorted(written.keys() - set(names)))
    yield from (f"its files have {name} {written[name]} times" for name in names if written[name] != 1)
    counted = {"total": each.total, "completed": len(each.output), "failed": len(each.errors)}
    if each.counts != counted:
        yield f"it counts {each.counts}, its files have {counted}"


def _find_failed(evidence: Evidence, each: Batched) -> Iterator[str]:
    for name, prediction_id in each.errors:
        final = evidence.finals.get(prediction_id)
        if final is None:
            yield f"{name} was refused"
            continue
        code, runs = final.record.get("code", ""), evidence.runs.get(prediction_id, [])
        was_hit = not runs or any(
            evidence.was_hindered(run.began - BEFORE_MS, run.ended, depends_on(run.server), pid=run.pid) for run in runs
        )
        if code not in BY_FAULTS or not was_hit:
            yield f"{name} failed with the code '{code}', which no fault explains"


def _find_run_again(evidence: Evidence, each: Batched) -> Findings:
    for _, prediction_id in (*each.output, *each.errors):
        for run, following in pairwise(sorted(evidence.runs.get(prediction_id, []), key=lambda run: run.began)):
            way = depends_on(run.server)
            if not evidence.was_hindered(run.began - BEFORE_MS, following.began, way, pid=run.pid):
                yield prediction_id, f"a line of {each.id} ran again at {following.began}, though nothing hit its run"


def count_extra_runs(evidence: Evidence) -> int:
    """Return the runs of lines beyond one for each."""
    ids = {prediction_id for each in evidence.batches.values() for _, prediction_id in (*each.output, *each.errors)}
    return sum(max(0, len(evidence.runs.get(prediction_id, [])) - 1) for prediction_id in ids)


def statuses(evidence: Evidence) -> dict[str, int]:
    return dict(sorted(Counter(each.status for each in evidence.batches.values()).items()))
