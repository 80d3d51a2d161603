import shutil
from pathlib import Path

import pytest

from director.broker import linker


def test_upgrade_under_a_live_process_mixes_no_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(linker.LUA, tmp_path / "lua")
    monkeypatch.setattr(linker, "LUA", tmp_path / "lua")
    linker.files.cache_clear()
    try:
        linker.link("get")
        shutil.rmtree(tmp_path / "lua")
        assert "redis.call" in linker.link("finish")
    finally:
        linker.files.cache_clear()
