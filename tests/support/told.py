"""Judge the webhooks of one receiver as its owner would: by what arrived, in the order of arrival."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from standardwebhooks import Webhook

from tests.support.sink import Received

TERMINAL = ("succeeded", "failed", "canceled", "aborted")


def by_prediction(received: Iterable[Received]) -> dict[str, list[Received]]:
    told: dict[str, list[Received]] = defaultdict(list)
    for one in received:
        told[json.loads(one.body)["id"]].append(one)
    return told


def judge(received: Sequence[Received], ids: Iterable[str], secret: str, *, is_whole: bool = True) -> None:
    """Check that each prediction sent signed webhooks from start to end. Unless `is_whole`, a start may be missing."""
    told = by_prediction(received)
    assert set(told) == set(ids)
    for one in received:
        Webhook(secret).verify(one.body, dict(one.headers))
    for prediction_id, webhooks in told.items():
        _judge_one(prediction_id, webhooks, is_whole=is_whole)


def _judge_one(prediction_id: str, webhooks: Sequence[Received], *, is_whole: bool) -> None:
    names = [one.headers["webhook-id"].removeprefix(f"msg_{prediction_id}_") for one in webhooks]
    bodies: list[dict[str, Any]] = [json.loads(one.body) for one in webhooks]
    ends = [body["status"] in TERMINAL for body in bodies]
    first_end = ends.index(True)
    assert all(ends[first_end:]), f"{names}: something came after the end"
    assert set(names[first_end:]) == {"completed"}, f"{names}: the end has one id, however often it came"
    assert len({one.body for one in webhooks[first_end:]}) == 1, "and says the same each time"
    progress = names[:first_end]
    assert len(set(progress)) == len(progress), f"{names}: progress is told once"
    starts = [name.startswith("start_") for name in progress]
    assert sum(starts) == 1 if is_whole else sum(starts) <= 1, f"{names}: it starts once"
    assert True not in starts[1:], f"{names}: nothing comes before the start"
    for before, after in pairwise(bodies):
        shown, later = before["output"] or [], after["output"] or []
        assert later[: len(shown)] == shown, f"{prediction_id}: what was put out only grows"
        assert (after["logs"] or "").startswith(before["logs"] or "")
