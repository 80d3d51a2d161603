"""A model behind FastAPI: `python fastapi_app.py PORT`."""

import json
import sys
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

app = FastAPI()


class Asked(BaseModel):
    text: str
    delay: float = 0


@app.post("/up")
def up(asked: Asked) -> str:
    time.sleep(asked.delay)  # the model's own time
    if asked.text == "boom":
        raise ValueError("no booms here")
    return asked.text.upper()


@app.post("/words")
def words(asked: Asked) -> StreamingResponse:
    def said() -> Iterator[str]:
        for word in asked.text.split():
            time.sleep(asked.delay)  # the model's own time
            yield json.dumps(word) + "\n"

    return StreamingResponse(said(), media_type="application/x-ndjson")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]))
