"""Run a bucket on this machine: moto's server, which speaks S3, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import httpx

from director.local.launcher.processes import free_port
from tests.support.clients import install_aside
from tests.support.eventually import eventually

MOTO: Final = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
AWS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def moto_folder(cache: Path) -> Path:
    folder = cache / "moto"
    install_aside(
        folder,
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *MOTO],
        "moto, a stand-in for S3,",
    )
    return folder


@asynccontextmanager
async def bucket_url(folder: Path) -> AsyncGenerator[str]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    process = await anyio.open_process(
        [sys.executable, "-c", f"from moto.server import main; main(['-p', '{port}'])"],
        env=dict(os.environ) | AWS | {"PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(trust_env=False) as client:

            async def made() -> bool:
                try:
                    return (await client.put(f"{endpoint}/bucket")).is_success
                except httpx.TransportError:
                    return False

            await eventually(made, "the bucket is made", limit_s=30)
        yield f"s3://bucket/below/here?endpoint={endpoint}&region=us-east-1"
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await process.aclose()
