"""Say a text n times, one string after another: the smallest model that streams.

Read this first. A Cog model is one class: `predict` takes the inputs, and what it returns or yields is the output.
The types and the `Input(...)` lines are the model's schema; what does not fit them is refused before `predict` runs.
"""

import time

from cog import BasePredictor, ConcatenateIterator, Input, streaming


class Predictor(BasePredictor):
    def setup(self) -> None:
        """Runs once, before the first prediction. A real model loads its weights here."""

    @streaming  # lets a caller read each string as it comes
    def predict(
        self,
        text: str = Input(description="What to say."),
        n: int = Input(default=5, ge=0, le=100000, description="How many times to say it."),
        delay: float = Input(default=0, ge=0, description="Seconds to wait between two strings."),
    ) -> ConcatenateIterator[str]:
        """Yield n strings. "Concatenate" says that they are pieces of one text: `"".join(output)` reads well."""
        for i in range(1, n + 1):
            yield f"{text} {i}\n"
            if i < n:
                wait(delay)


def wait(seconds: float) -> None:
    """Sleep in short naps: a prediction can be canceled between two lines of Python, not in the middle of a sleep."""
    wake_at = time.monotonic() + seconds
    while (left := wake_at - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
