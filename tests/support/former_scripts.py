"""Make the former release's script calls by our names: `CALLS` and `former_release.toml` pin its own."""

import importlib
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec.structs import asdict

from director.broker.scripts import Scripts
from director.core import errors
from director.core.schema import NewPrediction
from tests.support.release import FORMER, Release

# The calls that the tests of two releases make, each with every parameter that 0.2.0 has for it.
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(parameters.split())
    for name, parameters in {
        "advance": "prediction_id token seq ran_ms events remote now_ms",
        "arrive": (
            "prediction_id queue move record input events idempotency weight most_running limits_rev refuses now_ms"
        ),
        "bound": "queue mode max_queued",
        "cancel": "prediction_id account kind now_ms",
        "claim": "queue consumer nonce count lease_s budget alone warm now_ms",
        "depart": "queue ids site now_ms",
        "drop": "prediction_id queue now_ms",
        "enqueue": (
            "prediction_id queue account model version kind deployment destination shard input lane cost url ticket"
            " webhook events lifetime_ms late start_by_ms affinity weight most_queued most_running limits_rev metered"
            " data_ttl_s idempotency trace now_ms"
        ),
        "expire": "queue limit now_ms",
        "extend": "queue consumer lease_s claims slots state about now_ms",
        "finish": (
            "prediction_id token status error code output logs metrics ran_ms grace_s over_ms seq events now_ms"
        ),
        "get": "prediction_id outlook now_ms",
        "limit": "queue tenant weight most_running revision",
        "pause": "queue paused tenant revision now_ms",
        "promote": "queue limit now_ms",
        "reap": "queue limit now_ms",
        "reconcile": "queue start count lease_s now_ms",
        "recover": "queue lane number cursor count idle_s now_ms",
        "register": "queue version policy",
        "release": "prediction_id token spent delay_s error code now_ms",
        "resize": "queue streams",
        "retire": "queue silent_s now_ms",
        "revive": "prediction_id now_ms",
        "stats": "queue now_ms",
        "stay": "prediction_id site now_ms",
        "vacate": "prediction_id site canceled now_ms",
    }.items()
}

# Parameters of ours that 0.2.0 lacks. A call that gives one of them is made by this release alone.
OURS_ALONE: Final[Mapping[str, frozenset[str]]] = {
    "claim": frozenset({"send"}),
    "enqueue": frozenset({"bound", "secret", "waiter"}),
    "extend": frozenset({"swap"}),
    "finish": frozenset({"ahead_ms", "claimed_ms"}),
    "get": frozenset({"size", "whole"}),
    "pause": frozenset({"by"}),
    "reap": frozenset({"lease_s"}),
    "release": frozenset({"began", "claimed_ms"}),
}

# Parameters of ours that 0.2.0's calls do without: it finds their values in the record.
FOUND: Final[Mapping[str, frozenset[str]]] = {"finish": frozenset({"queue"})}

# Fields of NewPrediction that 0.2.0's `enqueue` takes by other names.
FORMER_NAMES: Final = {
    "id": "prediction_id",
    "data_ttl_ms": "data_ttl_s",
    "traceparent": "trace",
    "tracestate": "trace",
}

# The errors that 0.2.0's calls raise, by its names.
ERRORS: Final[Mapping[str, type[Exception]]] = {
    "BackendUnavailable": errors.BackendUnavailable,
    "IdempotencyMismatch": errors.IdempotencyMismatch,
    "QueueRefused": errors.QueueRefused,
    "UnknownQueue": errors.UnknownQueue,
}


class FormerScripts:
    """0.2.0's calls, sent on its own connections. `carried_out` counts them by our names."""

    def __init__(self, release: Release, url: str) -> None:
        named = FORMER.modules
        with _instead_of_ours(release.folder):
            gatherer = importlib.import_module(named["gatherer"])
            texts = {path.stem: gatherer.source(path.stem) for path in (release.folder / "lua").glob("*.lua")}
            scripts = importlib.import_module(named["scripts"])
            redis_client = importlib.import_module(named["redis_client"])
        # later it would read our lua/
        vars(gatherer)["source"] = texts.__getitem__
        self._gatherer = gatherer.Gatherer(redis_client.client(url))
        self.scripts: Any = scripts.Scripts(self._gatherer)
        self.carried_out: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in CALLS:
            raise AttributeError(f"Say in CALLS how release {FORMER.version} is asked for {name}.")

        def call(*args: Any, **options: Any) -> Awaitable[Any]:
            return self._ask(name, by_name(name, args, options))

        return call

    async def aclose(self) -> None:
        await self._gatherer.aclose()
        await self._gatherer.redis.aclose()

    async def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self.carried_out[name] += 1
        try:
            return await getattr(self.scripts, name)(**arguments)
        except Exception as exc:
            kind = ERRORS.get(type(exc).__name__)
            if kind is None:
                raise
            ours = kind.__new__(kind)
            ours.args = exc.args
            vars(ours).update(vars(exc))
            raise ours from exc


class EitherScripts:
    """The calls of both releases as one: a coin decides each call. Both know only what is in Redis."""

    def __init__(self, ours: Any, theirs: FormerScripts, coin: random.Random) -> None:
        self._ours = ours
        self._theirs = theirs
        self.coin = coin
        self.carried_out: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        ours, theirs, alone = getattr(self._ours, name), getattr(self._theirs, name), OURS_ALONE.get(name, frozenset())

        def call(*args: Any, **options: Any) -> Awaitable[Any]:
            is_ours = self.coin.random() < 0.5 or not alone.isdisjoint(by_name(name, args, options))
            self.carried_out[name] += is_ours
            awaited: Awaitable[Any] = (ours if is_ours else theirs)(*args, **options)
            return awaited

        return call


def our_parameters(name: str) -> set[str]:
    ours = set(signature(getattr(Scripts, name)).parameters) - {"self"} - FOUND.get(name, set())
    if name != "enqueue":
        return ours
    fields = {FORMER_NAMES.get(field, field) for field in NewPrediction.__struct_fields__}
    return ours - {"prediction"} | fields


def by_name(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(signature(getattr(Scripts, name)).bind(None, *args, **options).arguments)
    for found in {"self"} | FOUND.get(name, set()):
        del arguments[found]
    return _apart(**arguments) if name == "enqueue" else arguments


def _apart(prediction: NewPrediction, **options: Any) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(prediction).items() if value not in (None, "", False)}
    trace = {name: fields.pop(name) for name in ("traceparent", "tracestate") if name in fields}
    fields["shard"] = tuple(map(int, fields["shard"].split(",")))
    if "data_ttl_ms" in fields:
        fields["data_ttl_ms"] /= 1000
    return {FORMER_NAMES.get(name, name): value for name, value in fields.items()} | {"trace": trace} | options


@contextmanager
def _instead_of_ours(folder: Path) -> Iterator[None]:
    """Import the product from `folder` in this block. Our modules are put back after it."""
    ours = _take_out()
    sys.path.insert(0, str(folder))
    try:
        yield
        found = {Path(str(module.__file__)).parents[len(name.split(".")) - 1] for name, module in _product_modules()}
        assert all(folder in (each, *each.parents) for each in found), found
    finally:
        sys.path.remove(str(folder))
        _take_out()
        sys.modules.update(ours)


def _take_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name, _ in _product_modules()}


def _product_modules() -> list[tuple[str, ModuleType]]:
    return [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] in FORMER.packages]
