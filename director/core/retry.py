"""How long to wait before another attempt. Pure: the caller brings the dice."""

from typing import Final

__all__ = ("BASE_S", "CAP_S", "backoff_s")

BASE_S: Final = 1.0
CAP_S: Final = 60.0


def backoff_s(attempt: int, *, dice: float, asked_s: float | None = None) -> float:
    """Full jitter after the `attempt`-th attempt failed: anywhere up to 1, 2, 4 … 60 s, so that a fleet never marches.

    `dice` is 0..1. A server's own Retry-After (`asked_s`) is a floor, up to the cap.
    """
    backoff = dice * min(CAP_S, BASE_S * 2.0 ** (attempt - 1))
    return max(backoff, min(asked_s or 0.0, CAP_S))
