"""Show a prediction as the client that asks understands it."""

import re
from typing import Final

from msgspec.structs import replace

from api.web.http import Request
from director.core.schema import Prediction, Stored
from director.core.states import Status
from director.core.view import view

# Replicate's clients that do not know `aborted`: wait() of JavaScript's polls for ever, a list fails in Python's
WITHOUT_ABORTED: Final = re.compile(r"replicate-(?:javascript/(?:0|1\.[0-4])|python/[01])\.")


def shown_to(request: Request, stored: Stored) -> Prediction:
    return told(request, view(stored))


def told(request: Request, prediction: Prediction) -> Prediction:
    """Return it with `canceled` in place of `aborted` for a client that does not know that word. Event streams and
    webhooks cannot know who reads: the former say `canceled` anyway.
    """
    if prediction.status is Status.ABORTED and WITHOUT_ABORTED.match(request.headers.get("user-agent", "")):
        return replace(prediction, status=Status.CANCELED)
    return prediction
