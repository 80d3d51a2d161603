"""A model behind BentoML: `bentoml serve bentoml_app:Words --port PORT`."""

import time
from collections.abc import Iterator

import bentoml


@bentoml.service(workers=1)
class Words:
    @bentoml.api
    def up(self, text: str, delay: float = 0) -> dict[str, str]:
        time.sleep(delay)  # the model's own time
        if text == "boom":
            raise ValueError("no booms here")
        return {"said": text.upper()}

    @bentoml.api
    def words(self, text: str, delay: float = 0) -> Iterator[str]:
        for word in text.split():
            time.sleep(delay)  # the model's own time
            yield word

    @bentoml.task
    def slowly(self, text: str, delay: float = 0) -> dict[str, str]:
        return self.up(text, delay)
