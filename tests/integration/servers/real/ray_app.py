"""A model behind Ray Serve: `python ray_app.py PORT`."""

import sys
import time
from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from ray import serve

app = FastAPI()


class Asked(BaseModel):
    text: str
    delay: float = 0


@serve.deployment
@serve.ingress(app)
class Words:
    @app.post("/up")
    def up(self, asked: Asked) -> str:
        time.sleep(asked.delay)  # the model's own time
        if asked.text == "boom":
            raise ValueError("no booms here")
        return asked.text.upper()

    @app.post("/words")
    def words(self, asked: Asked) -> StreamingResponse:
        def said() -> Iterator[str]:
            for word in asked.text.split():
                time.sleep(asked.delay)  # the model's own time
                yield word

        return StreamingResponse(said(), media_type="text/plain")


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Words.bind(), blocking=True)
