"""A model server that takes memory of a fake device, in one of the ways that servers of this world have. Run by path in
any Python, without packages: `python device_model.py PORT '{"model": "a", "memory": {"gpu0": 4}}'`.

GET /health answers 200 once it is loaded, POST /predict runs for the `seconds` of its input, POST /sleep frees the
memory, POST /wake takes it again. The fields of `Habits` are how it misbehaves.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Habits:
    """`memory`: by device. `load_s`: before it is ready. `deaf`: it
    ignores SIGTERM. `forks`: a process of its own session, which ignores SIGTERM, shares the memory; `hides`: that one
    has no environment either. `fails`: it takes memory and ends with code 3 while it loads. `hangs`: it is never ready.
    `chatty`: bytes that it prints while it loads. `refuses_sleep`, `refuses_wake`: that call answers 500. `drips`: its
    answer to a sleep call never ends.
    """

    model: str
    memory: dict[str, int] = field(default_factory=dict)
    load_s: float = 0.0
    deaf: bool = False
    forks: bool = False
    hides: bool = False
    fails: bool = False
    hangs: bool = False
    chatty: int = 0
    refuses_sleep: bool = False
    refuses_wake: bool = False
    drips: bool = False


class Model:
    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.is_ready = False
        self.memory: socket.socket | None = None
        self.lock = threading.Lock()

    def load(self) -> None:
        self.allocate()
        if self.habits.forks and os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                self.outlive()
            os._exit(0)
        if self.habits.chatty:
            print("x" * self.habits.chatty, flush=True)
        time.sleep(self.habits.load_s)  # the model's own time
        if self.habits.fails:
            print("RuntimeError: the weights are broken", flush=True)
            os._exit(3)
        self.is_ready = not self.habits.hangs

    def outlive(self) -> None:
        if self.habits.hides:
            assert self.memory is not None
            self.memory.set_inheritable(True)
            os.execve("/bin/sleep", ["sleep", "600"], {})  # noqa: S606 - no shell is meant
        while True:
            signal.pause()

    def allocate(self) -> None:
        host, _, port = os.environ["FAKE_DEVICES"].partition(":")
        self.memory = socket.create_connection((host, int(port)))
        wanted = [
            {"device": device, "model": self.habits.model, "pid": os.getpid(), "size": size}
            for device, size in self.habits.memory.items()
        ]
        if not self.ask(wanted):
            print("CUDA out of memory", flush=True)
            os._exit(12)

    def ask(self, said: Any) -> bool:
        assert self.memory is not None
        with self.lock:
            self.memory.sendall(json.dumps(said).encode())
            return self.memory.recv(1) == b"1"

    def free(self) -> None:
        assert self.memory is not None
        self.memory.close()

    def predict(self, given: dict[str, Any]) -> dict[str, Any]:
        self.ask({"run": 1})
        time.sleep(float(given.get("seconds", 0)))  # the model's own time
        self.ask({"run": -1})
        return {"output": self.habits.model}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model

    def do_GET(self) -> None:
        self.answer(200 if self.model.is_ready else 503, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        model = self.model
        if self.path == "/sleep":
            if model.habits.drips:
                self.drip()
            elif not model.habits.refuses_sleep:
                model.free()
            self.answer(500 if model.habits.refuses_sleep else 200, {})
        elif self.path == "/wake":
            if not model.habits.refuses_wake:
                model.allocate()
            self.answer(500 if model.habits.refuses_wake else 200, {})
        else:
            self.answer(200, model.predict(body.get("input", body)))

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            self.wfile.write(b"1\r\n \r\n")
            time.sleep(0.05)  # a stream that never ends

    def answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    habits = Habits(**json.loads(sys.argv[2]))
    if habits.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Handler.model = Model(habits)
    print(f"{habits.model} loads on {os.environ.get('CUDA_VISIBLE_DEVICES')!r}", flush=True)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    threading.Thread(target=Handler.model.load, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
