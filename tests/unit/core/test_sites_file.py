from pathlib import Path

import pytest

from api.sites.table import read_sites
from director.core.errors import SettingsError
from director.core.settings import ApiSettings

HOME = '[[site]]\nname = "eu"\nnumber = 0\n'
FAR = '[[site]]\nname = "us"\nnumber = 1\nredis_url_env = "REDIS_US"\n'
BASE = ApiSettings(redis_url="redis://eu/0", files_dir="/files")

WRONG = {
    "no TOML": ("[[site", "is not TOML"),
    "nothing": ("", "site"),
    "an unknown field": (f"{HOME}colour = 1\n", "colour"),
    "an unknown placement": (f'placement = "nearest"\n{HOME}', "placement"),
    "a number beyond the bits of an id": (HOME.replace("0", "64"), "site"),
    "a name for no label": (HOME.replace("eu", "E U"), "site"),
    "no weight": (f"{HOME}weight = 0\n", "site"),
    "one name twice": (f"{HOME}{FAR.replace('us', 'eu')}", "two sites have the name eu"),
    "one number twice": (f"{HOME}{FAR.replace('= 1', '= 0')}", "two sites have the number 0"),
    "an address of the home": (f'{HOME}redis_url_env = "X"\n', "eu is the first, and so the home"),
    "no address of another": (HOME + FAR.partition("redis")[0], "us needs redis_url_env"),
    "an address in place of a variable": (HOME + FAR.replace("REDIS_US", "redis://u:hidden@us"), "site"),
    "one server twice": (HOME + FAR + FAR.replace('"us"', '"asia"').replace("= 1", "= 2"), "address of REDIS_US"),
    "a model of a site that is not there": (f'{HOME}[models]\n"acme/echo" = ["mars"]\n', "models: acme/echo"),
    "a model of none": (f'{HOME}[models]\n"acme/echo" = []\n', "models: acme/echo"),
    "a malformed model": (f'{HOME}[models]\n"echo" = ["eu"]\n', "models"),
}


def test_a_mistake_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    told = {}
    for why, (text, _) in WRONG.items():
        path.write_text(text)
        with pytest.raises(SettingsError) as wrong:
            read_sites(path)
        told[why] = str(wrong.value)
    assert [why for why, (_, part) in WRONG.items() if part not in told[why] or "\n" in told[why]] == []
    assert "hidden" not in "".join(told.values())
    with pytest.raises(SettingsError, match="cannot be read"):
        read_sites(tmp_path / "none")


def test_home_uses_the_environment_and_other_sites_their_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(f'{HOME}{FAR}files_url = "s3://us"\n')
    home, far = read_sites(path).settings(BASE, {"REDIS_US": "redis://us/0"})
    assert home == BASE
    assert (far.redis_url, far.files_dir, far.files_url) == ("redis://us/0", "", "s3://us")


@pytest.mark.parametrize("url", ["", BASE.redis_url], ids=["no address", "that of the home"])
def test_another_site_needs_an_address_of_its_own(tmp_path: Path, url: str) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(HOME + FAR)
    with pytest.raises(SettingsError, match="REDIS_US"):
        read_sites(path).settings(BASE, {"REDIS_US": url})


def test_two_variables_name_two_servers(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(HOME + FAR + FAR.replace('"us"', '"asia"').replace("= 1", "= 2").replace("REDIS_US", "REDIS_ASIA"))
    with pytest.raises(SettingsError, match="REDIS_US and REDIS_ASIA have the address of one server") as wrong:
        read_sites(path).settings(BASE, dict.fromkeys(("REDIS_US", "REDIS_ASIA"), "redis://:hidden@us"))
    assert "hidden" not in str(wrong.value)


def test_files_are_of_one_site_alone(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(f'{HOME}{FAR}files_dir = "/files"\n')
    with pytest.raises(SettingsError, match="its own"):
        read_sites(path).settings(BASE, {"REDIS_US": "redis://us/0"})
