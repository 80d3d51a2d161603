"""Change accounts and tokens on behalf of operators, whose rights the caller has checked.

Every change is logged with its operator. Secrets are never logged.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Rotated
from director.broker.scripts import Scripts
from director.core.account_limits import UNLIMITED
from director.core.clock import Clock
from director.core.errors import BackendFull, BackendUnavailable, UnknownQueue
from director.core.ids import Kind, PredictionId, QueueName
from director.core.webhooks import new_secret
from director.store.accounts import (
    Accounts,
    AccountType,
    Policy,
    Reason,
    Suspension,
    Token,
    TokenChange,
    Written,
    refuse_name,
)
from director.store.catalog import Catalog
from director.store.changes import Changes
from director.store.predictions import Predictions

# Keep a suspended account from running anything, and let it run again. Any process may repeat every step. Once
# `suspend` has returned, no queue hands out anything of the account. An API that does not know of it yet may still
# accept predictions, which wait. A queue follows the latest number of a change, so a late one undoes nothing. A new
# queue is listed before it reads the suspensions, and a suspension before it reads the queues: one of the two sees the
# other.

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
CANCELS_AT_ONCE: Final = 100  # predictions of a list per write that cancels
SETTLED_S: Final = 600.0  # longer than an API caches an account


class Ended(Struct, frozen=True, kw_only=True):
    """Predictions of a suspended account: `ended` in their queue, `asked` to stop, `left` that have not ended yet."""

    ended: int = 0
    asked: int = 0
    left: int = 0


class Suspensions:
    def __init__(self, redis: Redis, accounts: Accounts, catalog: Catalog, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._accounts = accounts
        self._catalog = catalog
        self._scripts = scripts
        self._predictions = Predictions(redis)
        self._clock = clock

    async def suspend(self, account: str, policy: Policy, reason: Reason, *, within_s: float) -> Ended:
        """Hold or end all that the account has, for up to `within_s`. Raises SettingsError for an unknown account."""
        await self._accounts.refuse_unknown(account)
        await self._begin(account)
        since_ms = self._clock.now_ms()
        await self._accounts.set_suspension(account, Suspension(policy=policy, reason=reason, since_ms=since_ms))
        return await self.settle(account, within_s=within_s)

    async def resume(self, account: str) -> None:
        await self._accounts.refuse_unknown(account)
        await self._begin(account)
        await self._accounts.set_suspension(account, None)
        await self.settle(account, within_s=0)

    async def settle(self, account: str, *, within_s: float) -> Ended:
        written = await self._accounts.read_written(account)
        try:
            await self._list(account, 2 * written.suspension_rev + (written.suspension is not None))
        except BackendFull:
            await self._apply(account, written, within_s)  # cancels free memory, so a later try can list it
            raise
        return await self._apply(account, written, within_s)

    async def settle_all(self, *, within_s: float) -> int:
        """Settle each account that was recently suspended or resumed, and return how many. Forget old settled ones.

        Raises BackendUnavailable after the last of them, if one could not be settled.
        """
        found = await ask(lambda: self._redis.zrange(keys.settling(), 0, -1, withscores=True))
        unfinished: set[float] = set()
        failure: BackendUnavailable | None = None
        for name, since_ms in found:
            try:
                is_settled = not (await self.settle(text(name), within_s=within_s)).left
            except BackendUnavailable as exc:  # it may concern this account alone
                is_settled, failure = False, exc
            if not is_settled:
                unfinished.add(since_ms)
        old_ms = self._clock.now_ms() - SETTLED_S * 1000
        for since_ms in {since_ms for _, since_ms in found if since_ms < old_ms} - unfinished:
            # By time and not by name: the account may have been suspended again meanwhile.
            await ask(partial(self._redis.zremrangebyscore, keys.settling(), since_ms, since_ms))
        if failure is not None:
            raise failure
        return len(found)

    async def _begin(self, account: str) -> None:
        """Note the account before anything changes: a keeper finishes whatever is cut short from here on."""
        await ask(lambda: self._redis.zadd(keys.settling(), {account: self._clock.now_ms()}))

    async def _list(self, account: str, score: int) -> None:
        listed = await ask(lambda: self._redis.zscore(keys.suspensions(), account))
        if listed is None or listed < score:  # a full server refuses to add even what is there
            await ask(lambda: self._redis.zadd(keys.suspensions(), {account: score}, gt=True))

    async def _apply(self, account: str, written: Written, within_s: float) -> Ended:
        queues, suspension = await self._catalog.queues(), written.suspension
        revision = written.suspension_rev
        await _in_each(
            queues, partial(self._scripts.pause, paused=suspension is not None, account=account, revision=revision)
        )
        if suspension is None or suspension.policy == "hold":
            return Ended()
        return await self._end(account, queues, revision, within_s)

    async def _end(self, account: str, queues: list[QueueName], revision: int, within_s: float) -> Ended:
        """Cancel what the account has, for up to `within_s`, as long as this is the number of its last change."""
        began, ended, asked = self._clock.monotonic(), 0, set[PredictionId]()
        here = await self._count_left(account, queues)
        # Most are the newest of the lists, which may be long. One whose create failed half way is only in its queue.
        for part, slices in ((0.5, self._read_predictions(account)), (1.0, self._live(account, list(here)))):
            async for some in slices:
                if ended + len(asked) >= here.total() or self._clock.monotonic() >= began + part * within_s:
                    break
                # An account that was resumed meanwhile may have new work, at the end of its queues.
                if (await self._accounts.read_written(account)).suspension_rev != revision:
                    break
                cancels = (self._scripts.cancel(each, account=account, kind=kind) for each, kind in some)
                for (each, _), outcome in zip(some, await asyncio.gather(*cancels), strict=True):
                    ended += outcome == "canceled"
                    if outcome == "asked":
                        asked.add(each)
        left = (await self._count_left(account, queues)).total() if here else 0
        return Ended(ended=ended, asked=len(asked), left=left)

    async def _read_predictions(self, account: str) -> AsyncIterator[list[tuple[PredictionId, Kind]]]:
        for kind in KINDS:
            high = "+"
            while ids := await self._predictions.ids(account, kind, high=high, count=CANCELS_AT_ONCE):
                yield [(each, kind) for each in ids]
                high = f"({ids[-1]}"

    async def _live(self, account: str, queues: list[QueueName]) -> AsyncIterator[list[tuple[PredictionId, Kind]]]:
        for queue in queues:
            async for some in self._predictions.live_of_account(queue, account):
                yield some

    async def _count_left(self, account: str, queues: list[QueueName]) -> Counter[QueueName]:
        """Return how many predictions the account has in each queue where it has some."""

        def read(pipe: Any) -> None:
            for queue in queues:
                pipe.hget(keys.queued(queue), account)
                pipe.hget(keys.running(queue), account)

        counts = [int(count or 0) for count in await pipelined(self._redis, read)]
        sums = zip(queues, counts[::2], counts[1::2], strict=True)
        return Counter({queue: queued + running for queue, queued, running in sums if queued + running})


async def _in_each(queues: Sequence[QueueName], act: Callable[[QueueName], Awaitable[None]]) -> None:
    """Act in each of these queues that is registered. A deletion that was cut short leaves one listed that is not."""

    async def one(queue: QueueName) -> None:
        with contextlib.suppress(UnknownQueue):
            await act(queue)

    await asyncio.gather(*map(one, queues))


OF_QUEUES: Final = frozenset({"weight", "max_running", "open_hours"})


class MadeToken(Struct, frozen=True):
    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"MadeToken({self.token!r})"


@dataclass(slots=True, eq=False)
class Administration:
    """`by` names the operator. Raises SettingsError for an unknown account or an invalid value."""

    accounts: Accounts
    _catalog: Catalog
    _scripts: Scripts
    _suspensions: Suspensions
    _changes: Changes

    async def create(self, name: str, kind: AccountType, *, by: str) -> bool:
        refuse_name(name)
        async with self._changes.noting("account_created", by=by, account=name, type=kind) as noted:
            is_new = await self.accounts.create(name, kind)
            if not is_new:
                noted.void()
        return is_new

    async def set_type(self, name: str, kind: AccountType, *, by: str) -> None:
        async with self._changes.noting("account_type_set", by=by, account=name, type=kind):
            await self.accounts.set_type(name, kind)

    async def set_limits(self, name: str, limits: Mapping[str, str], *, by: str) -> Written:
        async with self._changes.noting("limits_set", by=by, account=name, limits=limits):
            await self.accounts.set_limits(name, limits)
            written = await self.accounts.read_written(name)
            if OF_QUEUES & set(limits):
                await self.tell_queues(name, written, limits)
        return written

    async def suspend(self, name: str, policy: Policy, reason: Reason, *, by: str, within_s: float) -> Ended:
        """Let no prediction start. With `end`, cancel what there is for up to `within_s`; a keeper does the rest."""
        async with self._changes.noting("account_suspended", by=by, account=name, policy=policy, reason=reason):
            return await self._suspensions.suspend(name, policy, reason, within_s=within_s)

    async def resume(self, name: str, *, by: str) -> None:
        async with self._changes.noting("account_resumed", by=by, account=name):
            await self._suspensions.resume(name)

    async def rotate_secret(self, name: str, *, keep_s: float, by: str) -> Rotated:
        await self.accounts.refuse_unknown(name)
        async with self._changes.noting("secret_rotated", by=by, account=name, keep_s=keep_s) as noted:
            rotated = await self._scripts.rotate(name, secret=new_secret(), keep_s=keep_s)
            if rotated != "rotated":
                noted.void()
        return rotated

    async def create_token(
        self, name: str, *, scopes: Sequence[str], lanes: Sequence[str], label: str, expires_ms: int | None, by: str
    ) -> MadeToken:
        refuse_name(name)
        made = self.accounts.tokens.new(lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms)
        may = {"scopes": made.scopes, "lanes": made.lanes}
        async with self._changes.noting(
            "token_created", by=by, account=name, token=made.id, label=label, expires_ms=expires_ms, may=may
        ):
            return MadeToken(await self.accounts.give_token(name, made), made.secret)

    async def change_token(self, token: Token, change: TokenChange, *, by: str) -> Token | None:
        """Return the token as it is then, or None if it was revoked meanwhile."""
        self.accounts.tokens.check(change)
        facts: dict[str, object] = {name: text.split(",") for name, text in change.fields.items() if name != "label"}
        facts |= {name: value for name in ("label", "expires_ms") if (value := getattr(change, name)) is not None}
        async with self._changes.noting(
            "token_changed", by=by, account=token.account, token=token.id, label=token.label, to=facts
        ) as noted:
            if not await self._scripts.allow(token.digest, change.fields, expires_ms=change.expires_ms):
                noted.void()
                return None
        if change.expires_ms is not None:
            await self.accounts.tokens.forget_expiry(token)
        return await self.accounts.tokens.find_digest(token.digest)

    async def revoke(self, token: Token, *, by: str) -> bool:
        async with self._changes.noting(
            "token_revoked", by=by, account=token.account, token=token.id, label=token.label
        ) as noted:
            is_gone = await self.accounts.tokens.remove(token)
            if not is_gone:
                noted.void()
        return is_gone

    async def tell_queues(self, name: str, written: Written, changed: Collection[str]) -> None:
        """Apply changed limits to what waits here. `written`: of the home, of which each site follows the latest
        revision. Only the API knows the default of `max_running`: the next create brings it.
        """
        limits = UNLIMITED.over(written.limits)
        most_running: int | Literal["kept"] | None = limits.max_running if "max_running" in written.limits else "kept"

        async def tell(queue: QueueName) -> None:
            await self._scripts.limit(
                queue, name, weight=limits.weight, most_running=most_running, revision=written.revision
            )
            if "open_hours" in changed:
                await self._scripts.hours(queue, limits.closing_hours, account=name, revision=written.revision)

        await _in_each(await self._catalog.queues(), tell)
