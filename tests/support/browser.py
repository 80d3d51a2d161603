"""Drive Debian's Chromium through Playwright, with axe-core for accessibility. Skips where one is missing."""

import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.clients import install_aside, javascript_package

PLAYWRIGHT: Final = ("playwright==1.65.2",)
AXE: Final = "axe-core@4.14.1"
PROGRAMS: Final = ("chromium", "chromium-browser")


class Window:
    """One page of the browser. `faults` holds console errors and uncaught exceptions of its scripts."""

    def __init__(self, page: Any, axe: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self._axe = axe
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    async def barriers(self) -> list[str]:
        """Return the findings of axe-core in the page: the rule and its first place."""
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(self._axe)
        found = await self.page.evaluate("() => axe.run()")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:120]} {one['nodes'][0].get('failureSummary', '')[:300]}"
            for one in found["violations"]
        ]


@asynccontextmanager
async def browser(cache: Path) -> AsyncGenerator[Any]:
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("Debian's chromium is not installed")
    folder = cache / "playwright"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *PLAYWRIGHT]
    install_aside(folder, command, "Playwright")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            await chromium.close()


def axe_script(cache: Path) -> str:
    return (javascript_package(cache, AXE) / "axe-core" / "axe.min.js").read_text()
