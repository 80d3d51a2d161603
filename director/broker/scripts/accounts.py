"""What an account has and may still have, over all its queues. Knows of no queue: those hold their own limits."""

from collections.abc import Mapping
from typing import Final, Literal, cast

from msgspec import Struct

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.scripts.wire import Wire, ms, now
from director.core.account_limits import Bucket
from director.core.ids import PredictionId

Reserved = Literal["create", "read", "compute", "credit"]
"""credit: compute of all days together."""
Rotated = Literal["rotated", "unknown", "full"]
Deployed = Literal["written", "changed", "full"]

MOST_FORMER: Final = 4  # secrets that sign beside the current one: each is a signature in every webhook's header


class Allowance(Struct, frozen=True, kw_only=True):
    """How a limit stands after it was asked. `remaining` of `most`: requests, or seconds of compute.

    `reset_ms`: until all of it is there again; `retry_after_ms`: until this may be asked again, 0 where it is allowed.
    Of compute it tells of the limit that there is less left of; credit comes back with no time, so both are 0.
    """

    limit: Reserved
    allowed: bool
    most: int
    remaining: int
    reset_ms: int
    retry_after_ms: int


class Stowed(Struct, frozen=True):
    """Whether an account had room for it, and the bytes that it keeps then."""

    fits: bool
    total: int


class AccountScripts(Wire):
    """The limits of accounts, each account in a slot of its own."""

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
        """Take one token of a bucket, or `asked_s` of so many seconds of compute a day and `in_all`, None for no limit;
        nothing where it is denied.

        Safe to repeat with the same id, for half a minute at least. `id` of compute is the prediction's.
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
        """Put the compute that was reserved for a prediction right by what it spent; give a token of creates back.

        Which of (token, compute) there was to give back. Safe to repeat.
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
        """Count what one file, or all files of one prediction, take until then; 0: nothing any more.

        Without a name it only tells what there is. Safe to repeat.
        """
        written = [keys.stored(account), keys.stored_until(account)]
        args: list[Arg] = [name, size, "" if most is None else most, until_ms, now(now_ms)]
        fits, total, more = await self._call("stow", written, args)
        while more and not fits:
            fits, total, more = await self._call("stow", written, args)
        return Stowed(fits=bool(fits), total=total)

    async def rotate(self, account: str, *, secret: str, keep_s: float, now_ms: int | None = None) -> Rotated:
        """Sign with this secret from now on, and with the former one too for `keep_s`; 0: with no former one at all."""
        args: list[Arg] = [secret, ms(keep_s), MOST_FORMER, now(now_ms)]
        return cast(Rotated, (await self._call("rotate", [keys.account(account)], args)).decode())

    async def deploy(
        self, account: str, name: str, *, was: bytes, becomes: bytes, created_ms: int, most: int
    ) -> Deployed:
        """Write what a deployment is now, if it is what `was` says; empty stands for none."""
        args: list[Arg] = [name, was, becomes, created_ms, most]
        written = [keys.deployment(account, name), keys.deployments(account)]
        return cast(Deployed, (await self._call("deploy", written, args)).decode())


def _keys(account: str) -> list[str]:
    return [keys.usage(account), keys.taken(account), keys.compute(account), keys.credit(account)]


def _ms_of(seconds: int | None) -> Arg:
    return "" if seconds is None else ms(seconds)


def _fill(rate: float) -> int:
    """Tokens a second as the scripts take them: billionths of one a millisecond, whole, so that nothing is rounded."""
    return int(rate * 1_000_000)
