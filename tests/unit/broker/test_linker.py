import shutil
import subprocess
import sys
from pathlib import Path

from director.broker import linker

UPGRADED = """
import shutil
from director.broker import linker
shutil.rmtree("lua")
assert not linker.LUA.exists()
print(linker.link("finish"))
"""


def test_upgrade_under_a_live_process_mixes_no_scripts(tmp_path: Path) -> None:
    shutil.copytree(Path(linker.__file__).parents[1], tmp_path / "director")
    shutil.copytree(linker.LUA, tmp_path / "lua")
    ran = subprocess.run([sys.executable, "-c", UPGRADED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "redis.call" in ran.stdout
