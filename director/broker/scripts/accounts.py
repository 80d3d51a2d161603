"""Call the scripts that hold an account's limits over its queues. Limits of one queue are in its scripts."""

from collections.abc import Mapping
from typing import Final, Literal, cast

from msgspec import Struct

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.scripts.wire import Wire, ms, now
from director.core.account_limits import Bucket
from director.core.ids import PredictionId

Reserved = Literal["create", "read", "compute", "credit"]
"""credit: compute over all days."""
Rotated = Literal["rotated", "unknown", "full"]
Deployed = Literal["written", "changed", "full"]

MOST_FORMER: Final = 4  # secrets that sign beside the current one: each adds a signature to every webhook's header


class Allowance(Struct, frozen=True, kw_only=True):
    """The state of a limit after a request. `remaining` of `most`: requests, or seconds of compute.

    `reset_ms`: until all of it is available again. `retry_after_ms`: until the request may be repeated, 0 if it was
    allowed. For compute this is the limit with less left; credit does not come back with time, so both are 0.
    """

    limit: Reserved
    allowed: bool
    most: int
    remaining: int
    reset_ms: int
    retry_after_ms: int


class Stowed(Struct, frozen=True):
    """Whether the files fit into the account's limit, and the bytes that the account keeps now."""

    fits: bool
    total: int


class AccountScripts(Wire):
    """The limits of accounts, each account in its own slot."""

    async def reserve(
        self,
        account: str,
        of: Bucket | int | None,
        *,
        id: str,  # noqa: A002 - the word for it
        asked_s: float = 0,
        in_all: int | None = None,
        now_ms: int | None = None,
    ) -> Allowance:
        """Take one token of a bucket, or reserve `asked_s` seconds of compute. Nothing is taken if it is denied.

        `of`: the bucket, or the seconds of compute per day; `in_all`: the seconds in total; None for no limit. `id` for
        compute is the prediction's. Safe to repeat with the same id for at least half a minute.
        """
        if isinstance(of, Bucket):
            args: list[Arg] = [of.name, id, of.burst, _fill(of.rate), 0, ""]
            most: Mapping[Reserved, int | None] = {of.name: of.burst}
        else:
            args = ["compute", id, _ms_of(of), 0, ms(asked_s), _ms_of(in_all)]
            most = {"compute": of, "credit": in_all}
        reply = await self._call("reserve", _keys(account), [*args, now(now_ms)])
        allowed, remaining, reset_ms, retry_after_ms, limit = reply
        told_of = cast(Reserved, limit.decode())
        return Allowance(
            limit=told_of,
            allowed=bool(allowed),
            most=most[told_of] or 0,
            remaining=remaining if isinstance(of, Bucket) else remaining // 1000,
            reset_ms=reset_ms,
            retry_after_ms=retry_after_ms,
        )

    async def spend(
        self,
        account: str,
        *,
        prediction_id: PredictionId | None = None,
        spent_s: float = 0,
        token: tuple[Bucket, str] | None = None,
        now_ms: int | None = None,
    ) -> tuple[bool, bool]:
        """Replace a prediction's reserved compute by what it spent, and give back a token of the create bucket.

        Returns for (token, compute) whether there was something to correct. Safe to repeat.
        """
        bucket, taken_by = token or (Bucket("create", 0, 0), "")
        args: list[Arg] = [taken_by, bucket.burst, _fill(bucket.rate), prediction_id or "", ms(spent_s), now(now_ms)]
        returned, corrected = await self._call("spend", _keys(account), args)
        return bool(returned), bool(corrected)

    async def stow(
        self,
        account: str,
        name: str = "",
        size: int = 0,
        *,
        most: int | None = None,
        until_ms: int = 0,
        now_ms: int | None = None,
    ) -> Stowed:
        """Count `size` bytes for one file, or for all files of one prediction, until `until_ms`. Size 0 removes it.

        Without a name it only returns the current total. Safe to repeat.
        """
        written = [keys.stored(account), keys.stored_until(account)]
        args: list[Arg] = [name, size, "" if most is None else most, until_ms, now(now_ms)]
        fits, total, more = await self._call("stow", written, args)
        while more and not fits:
            fits, total, more = await self._call("stow", written, args)
        return Stowed(fits=bool(fits), total=total)

    async def rotate(self, account: str, *, secret: str, keep_s: float, now_ms: int | None = None) -> Rotated:
        """Sign with this secret from now on, and with the former one for `keep_s` more; 0 drops all former secrets."""
        args: list[Arg] = [secret, ms(keep_s), MOST_FORMER, now(now_ms)]
        return cast(Rotated, (await self._call("rotate", [keys.account(account)], args)).decode())

    async def deploy(
        self, account: str, name: str, *, was: bytes, becomes: bytes, created_ms: int, most: int
    ) -> Deployed:
        """Write a deployment if it still equals `was`; empty bytes stand for a missing deployment."""
        args: list[Arg] = [name, was, becomes, created_ms, most]
        written = [keys.deployment(account, name), keys.deployments(account)]
        return cast(Deployed, (await self._call("deploy", written, args)).decode())


def _keys(account: str) -> list[str]:
    return [keys.usage(account), keys.taken(account), keys.compute(account), keys.credit(account)]


def _ms_of(seconds: int | None) -> Arg:
    return "" if seconds is None else ms(seconds)


def _fill(rate: float) -> int:
    """Return the fill rate as scripts take it: whole billionths of a token per millisecond, so nothing is rounded."""
    return int(rate * 1_000_000)
