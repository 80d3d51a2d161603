"""Replicate's HTTP API over the queue. Nothing runs here."""

from typing import Final

PART_OF: Final = "director-queue"
"""Tells `director.runtime.own_api` that this is our `api`."""
