import re
import tomllib
from pathlib import Path

import pytest

from tests.support.former_scripts import CALLS, OURS_ALONE, our_parameters
from tests.support.release import FORMER, OURS, archive


def path_with_git(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str | None) -> None:
    """Let PATH hold a git that fails with these words, or no git."""
    (folder / "bin").mkdir()
    if says is not None:
        git = folder / "bin" / "git"
        git.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 128\n")
        git.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("fatal: not a valid object name", r"(?s)not a valid object name.*git fetch --unshallow"),
        (None, "Install git"),
    ],
    ids=["shallow clone", "no git"],
)
def test_incomplete_checkout_fails_and_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, remedy: str
) -> None:
    (tmp_path / ".git").mkdir()
    path_with_git(tmp_path, monkeypatch, says)
    with pytest.raises(pytest.fail.Exception, match=remedy):
        archive(tmp_path, FORMER.commit)


def test_only_a_tree_without_history_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with_git(tmp_path, monkeypatch, "fatal: not a git repository")
    with pytest.raises(pytest.skip.Exception, match=r"no \.git here"):
        archive(tmp_path, FORMER.commit)


def test_former_release_is_the_last_one_of_the_changelog() -> None:
    """A release that forgets to name the next commit fails here."""
    mine = tomllib.loads((OURS / "pyproject.toml").read_text())["project"]["version"]
    released = re.findall(r"^## \[(\d[^]]*)\]", (OURS / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert FORMER.version == next(version for version in released if version != mine)


@pytest.mark.parametrize("name", CALLS)
def test_each_parameter_is_known_to_both_or_ours_alone(name: str) -> None:
    ours = our_parameters(name)
    assert ours - set(CALLS[name]) == OURS_ALONE.get(name, frozenset())
