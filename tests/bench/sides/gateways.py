"""Start the gateways of others in front of the played model server, and say how each side is called."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct

from director.lab.bench.load import Load
from director.local.launcher.processes import free_port
from tests.bench.processes import Child, child, until
from tests.bench.sides.ours import START_S
from tests.bench.sides.peers import Peer, installed
from tests.bench.sides.streams import Plan

FILLER: Final = "x" * 256  # of each request
TOKEN: Final = f"sk-{'0123456789abcdef' * 3}"
LITELLM_CONFIG: Final = f"""
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny, api_base: "URL/v1", api_key: {TOKEN}}}
general_settings: {{disable_spend_logs: true}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""
ENVIRONMENT: Final[dict[str, Any]] = {
    "LITELLM_MASTER_KEY": TOKEN,
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_DOCS": "True",
}
ROUTE: Final = ("--worker-urls", "{model}", "--policy", "round_robin", "--prometheus-port", "{metrics}")
LITELLM: Final = Peer(
    name="litellm",
    version="1.108.7",
    needs=("litellm[proxy]==1.108.7",),
    work=("--config", "{config}", "--num_workers", "1"),
)
GATEWAYS: Final = (
    LITELLM,
    Peer(name="smg", version="1.13.0", needs=("smg==1.13.0",), work=("launch", *ROUTE, "--log-level", "warn")),
    Peer(
        name="vllm-router",
        version="0.1.17",
        needs=("vllm-router==0.1.17",),
        work=(*ROUTE, "--log-level", "warning"),
    ),
)


class Side(Struct, frozen=True, kw_only=True):
    """Where calls go. `model`: the name that it has there."""

    name: str
    url: str
    token: str = "-"
    model: str = "tiny"

    def ask(self, *, connections: int, seconds: float) -> Load:
        """Return a load of calls that are answered whole."""
        return Load(
            url=f"{self.url}/chat/completions",
            headers=self._headers,
            body=self._body("1 0"),
            wanted='"content"',
            connections=connections,
            seconds=seconds,
        )

    def plan(self, prompt: str, moments: list[float], *, connections: int, limit_s: float) -> Plan:
        """Return a plan of streams for this prompt: how many tokens, and the pause between two in seconds."""
        return Plan(
            url=f"{self.url}/chat/completions",
            headers=self._headers,
            body=self._body(prompt, stream=True),
            moments=moments,
            connections=connections,
            limit_s=limit_s,
        )

    async def answers(self) -> bool:
        load = self.ask(connections=1, seconds=1)
        async with httpx.AsyncClient(trust_env=False, timeout=START_S) as http:
            try:
                answer = await http.post(load.url, headers=load.headers, content=load.body)
            except httpx.TransportError:
                return False
            return answer.status_code == 200

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}", "content-type": "application/json"}

    def _body(self, prompt: str, **fields: bool) -> str:
        said = [{"role": "system", "content": FILLER}, {"role": "user", "content": prompt}]
        return msgspec.json.encode({"model": self.model, "messages": said, **fields}).decode()


@asynccontextmanager
async def running(peer: Peer, model_url: str) -> AsyncIterator[tuple[Side, Child]]:
    """Run this peer in front of the model server. Raises NotInstalled."""
    port, program = free_port(), installed(peer).home / "bin" / peer.name
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(LITELLM_CONFIG.replace("URL", model_url))
        file.flush()
        words = {"model": model_url, "config": file.name, "metrics": str(free_port())}
        work = [word.format(**words) for word in peer.work]
        with child(peer.name, [str(program), *work, "--host", "127.0.0.1", "--port", str(port)], **ENVIRONMENT) as one:
            side = Side(name=peer.name, url=f"http://127.0.0.1:{port}/v1", token=TOKEN)
            await until(f"{peer.name} answers", side.answers, limit_s=START_S, every_s=0.2, alive=[one])
            yield side, one


def settings(peer: Peer) -> str:
    """Say how it is run."""
    shown = [word.format(model="MODEL", config="FILE", metrics="PORT") for word in peer.work]
    return f"{peer.shown} ({' '.join(shown)})"
