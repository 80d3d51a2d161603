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

from msgspec.structs import asdict, fields

from director.broker import scripts as our_scripts
from director.broker.scripts import Scripts
from director.core import errors
from director.core.schema import NewPrediction
from tests.support.release import FORMER, Release

# The calls that the tests of two releases make, each with every parameter that 0.3.0 has for it. The fields of a new
# prediction count as parameters of `enqueue`.
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(parameters.split())
    for name, parameters in {
        "advance": "prediction_id token seq ran_ms events remote now_ms",
        "arrive": (
            "prediction_id queue move record input events idempotency weight most_running limits_rev refuses now_ms"
        ),
        "bound": "queue mode max_queued",
        "cancel": "prediction_id account kind now_ms",
        "claim": "queue consumer nonce count lease_s budget alone warm send now_ms",
        "depart": "queue ids site now_ms",
        "drop": "prediction_id queue now_ms",
        "enqueue": (
            "id input idempotency weight most_running most_queued limits_rev lifetime_ms start_by_ms bound"
            " account queue lane shard cost model version kind deployment destination url ticket webhook events late"
            " affinity metered data_ttl_ms waiter traceparent tracestate secret now_ms"
        ),
        "expire": "queue limit now_ms",
        "extend": "queue consumer lease_s claims slots state swap about now_ms",
        "finish": (
            "prediction_id queue token status error code output logs metrics ran_ms grace_s over_ms claimed_ms ahead_ms"
            " seq events now_ms"
        ),
        "get": "prediction_id outlook whole size now_ms",
        "limit": "queue tenant weight most_running revision",
        "pause": "queue paused tenant revision by now_ms",
        "promote": "queue limit now_ms",
        "reap": "queue limit lease_s now_ms",
        "reconcile": "queue start count lease_s now_ms",
        "recover": "queue lane number cursor count idle_s now_ms",
        "register": "queue version policy",
        "release": "prediction_id token spent delay_s error code began claimed_ms now_ms",
        "resize": "queue streams",
        "retire": "queue silent_s now_ms",
        "revive": "prediction_id now_ms",
        "stats": "queue now_ms",
        "stay": "prediction_id site now_ms",
        "vacate": "prediction_id site canceled now_ms",
    }.items()
}

# Parameters of ours that 0.3.0 lacks, by call. A call that gives one of them is made by this release alone.
OURS_ALONE: Final[Mapping[str, frozenset[str]]] = {
    "advance": frozenset({"used"}),
    "enqueue": frozenset(
        {"api_token", "budgeted", "tokens", "endpoint", "once_shown", "start_after", "open_hours", "split"}
    ),
    "finish": frozenset({"used"}),
    "release": frozenset({"used"}),
}

# Parameters of ours that 0.3.0's calls do without, by call: it finds their values in the record.
FOUND: Final[Mapping[str, frozenset[str]]] = {}

# Parameters of ours that 0.3.0 takes by other names, by call.
FORMER_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "enqueue": {"webhook_events": "events", "deadline_status": "late"},
    "limit": {"account": "tenant"},
    "pause": {"account": "tenant"},
}

# The errors that 0.3.0's calls raise, by its names.
ERRORS: Final[Mapping[str, type[Exception]]] = {
    "BackendFull": errors.BackendFull,
    "BackendUnavailable": errors.BackendUnavailable,
    "IdempotencyMismatch": errors.IdempotencyMismatch,
    "QueueRefused": errors.QueueRefused,
    "UnknownQueue": errors.UnknownQueue,
}

# A field of a new prediction that has its default is left out of the call, as if its caller had not given it.
DEFAULTS: Final = {field.name: field.default for field in fields(NewPrediction)}


class FormerScripts:
    """0.3.0's calls, sent on its own connections. `carried_out` counts them by our names."""

    def __init__(self, release: Release, url: str) -> None:
        named = FORMER.modules
        with _instead_of_ours(release.folder):
            gatherer = importlib.import_module(named["gatherer"])
            self.module: Any = importlib.import_module(named["scripts"])
            redis_client = importlib.import_module(named["redis_client"])
        assert release.folder in gatherer.LUA.parents, "it would send our scripts"
        self._gatherer = gatherer.Gatherer(redis_client.client(url))
        self.scripts: Any = self.module.Scripts(self._gatherer)
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
        renamed = FORMER_NAMES.get(name, {})
        arguments = {renamed.get(parameter, parameter): value for parameter, value in arguments.items()}
        try:
            return await getattr(self.scripts, name)(**(self._filed(arguments) if name == "enqueue" else arguments))
        except Exception as exc:
            kind = ERRORS.get(type(exc).__name__)
            if kind is None:
                raise
            ours = kind.__new__(kind)
            ours.args = exc.args
            vars(ours).update(vars(exc))
            raise ours from exc

    def _filed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Put the fields of a new prediction together, in the former release's own type."""
        own = signature(self.scripts.enqueue).parameters
        options = {name: value for name, value in arguments.items() if name in own}
        prediction = {name: value for name, value in arguments.items() if name not in own}
        return {"prediction": self.module.NewPrediction(**prediction), **options}


class EitherScripts:
    """The calls of both releases as one: a coin decides each call. Both know only what is in Redis."""

    def __init__(self, ours: Any, theirs: FormerScripts, coin: random.Random) -> None:
        self._ours = ours
        self._theirs = theirs
        self._is_ours: bool | None = None
        self.coin = coin
        self.carried_out: Counter[str] = Counter()

    @contextmanager
    def one_release(self) -> Iterator[None]:
        """Toss once for all calls of this block: calls of one batch come from one process, which keeps their order."""
        self._is_ours = self._toss()
        try:
            yield
        finally:
            self._is_ours = None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        ours, theirs, alone = getattr(self._ours, name), getattr(self._theirs, name), OURS_ALONE.get(name, frozenset())

        def call(*args: Any, **options: Any) -> Awaitable[Any]:
            tossed = self._toss() if self._is_ours is None else self._is_ours
            is_ours = tossed or not alone.isdisjoint(by_name(name, args, options))
            self.carried_out[name] += is_ours
            awaited: Awaitable[Any] = (ours if is_ours else theirs)(*args, **options)
            return awaited

        return call

    def _toss(self) -> bool:
        return self.coin.random() < 0.5


def parameters(module: Any, name: str) -> tuple[str, ...]:
    """Return the parameters of one call in a release's module of scripts."""
    _, *own = signature(getattr(module.Scripts, name)).parameters
    return (*module.NewPrediction.__struct_fields__, *own[1:]) if name == "enqueue" else tuple(own)


def our_parameters(name: str) -> set[str]:
    """Return the parameters of one of our calls, by the former release's names."""
    renamed = FORMER_NAMES.get(name, {})
    ours = set(parameters(our_scripts, name)) - FOUND.get(name, frozenset())
    return {renamed.get(parameter, parameter) for parameter in ours}


def by_name(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one of our calls by our names, without those that the former release finds itself."""
    arguments = dict(signature(getattr(Scripts, name)).bind(None, *args, **options).arguments)
    if name == "enqueue":
        prediction = asdict(arguments.pop("prediction"))
        arguments |= {field: value for field, value in prediction.items() if value != DEFAULTS[field]}
    return {given: value for given, value in arguments.items() if given not in {"self"} | FOUND.get(name, frozenset())}


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
