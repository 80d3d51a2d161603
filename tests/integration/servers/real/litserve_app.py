"""A model behind LitServe: `python litserve_app.py PORT`."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import litserve


class Up(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        return request

    def predict(self, given: dict[str, Any]) -> str:
        time.sleep(given.get("delay", 0))  # the model's own time
        if given["text"] == "boom":
            raise ValueError("no booms here")
        return str(given["text"]).upper()

    def encode_response(self, output: str) -> str:
        return output


class Words(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def predict(self, given: dict[str, Any]) -> Iterator[str]:
        for word in given["text"].split():
            time.sleep(given.get("delay", 0))  # the model's own time
            yield word

    def encode_response(self, output: Iterator[str]) -> Any:  # FastAPI makes a schema of anything else
        for word in output:
            yield {"word": word}


if __name__ == "__main__":
    server = litserve.LitServer([Up(), Words(api_path="/words", stream=True)], accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
