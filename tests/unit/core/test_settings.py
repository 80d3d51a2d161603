import pytest

from director.core.errors import SettingsError
from director.core.settings import (
    GONE,
    PREFIX,
    ApiSettings,
    AuditSettings,
    CommonSettings,
    DirectorSettings,
    KeeperSettings,
    describe,
    describe_former,
    load,
)

ALL = [CommonSettings, ApiSettings, AuditSettings, DirectorSettings, KeeperSettings]


@pytest.mark.parametrize("cls", ALL)
def test_an_empty_environment_gives_the_defaults(cls: type[CommonSettings]) -> None:
    assert load(cls, {}) == cls()


def test_a_variable_is_read_as_its_type() -> None:
    settings = load(
        DirectorSettings,
        {"DIRECTOR_LEASE_S": "3", "DIRECTOR_ATTEMPTS": "5", "DIRECTOR_SERVERS": "http://a:1, http://b:2"},
    )
    assert (settings.lease_s, settings.attempts, settings.servers) == (3.0, 5, ("http://a:1", "http://b:2"))


def test_the_header_for_model_servers_is_a_name_and_a_value() -> None:
    settings = load(DirectorSettings, {"DIRECTOR_SERVER_HEADER": "Authorization: Bearer a: b"})
    assert settings.server_headers == {"authorization": "Bearer a: b"}
    assert DirectorSettings().server_headers == {}


@pytest.mark.parametrize(
    "wrong", ["s3cret", "x-key:s3cret", "x-key: s3cret\n", "x-key: s3\r\ncret: 1", "x key: s3cret"]
)
def test_a_header_that_cannot_be_sent_is_refused_and_not_repeated(wrong: str) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_SERVER_HEADER") as refused:
        load(DirectorSettings, {"DIRECTOR_SERVER_HEADER": wrong})
    assert "cret" not in str(refused.value)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert load(ApiSettings, {"DIRECTOR_PORT": ""}).port == ApiSettings().port


def test_the_command_line_wins_where_it_says_something() -> None:
    environ = {"DIRECTOR_PORT": "1000", "DIRECTOR_HOST": "0.0.0.0"}
    settings = load(ApiSettings, environ, port=2000, host=None)
    assert (settings.port, settings.host) == (2000, "0.0.0.0")


@pytest.mark.parametrize("name", GONE)
def test_former_setting_has_no_effect_and_says_what_holds_now(name: str) -> None:
    environ = {PREFIX + name.upper(): "1"}
    assert load(ApiSettings, environ) == ApiSettings()
    assert describe_former(environ) == [
        f"{PREFIX}{name.upper()} is no setting any more: {GONE[name]}. Remove the variable."
    ]
    assert describe_former({PREFIX + name.upper(): ""}) == []


def test_other_variables_are_not_ours() -> None:
    assert load(ApiSettings, {"PORT": "1", "DIRECTOR_LEASE_S": "much"}) == ApiSettings()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PORT", "eighty", "a whole number"),
        ("PORT", "65536", "<= 65535"),
        ("CACHE_S", "-1", ">= 0"),
        ("DURABILITY", "none", "regex"),
        ("LOG_LEVEL", "LOUD", "regex"),
    ],
)
def test_a_wrong_value_names_its_variable_and_what_it_should_be(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"DIRECTOR_{name}: .*{why}"):
        load(ApiSettings, {f"DIRECTOR_{name}": value})


@pytest.mark.parametrize("cls", ALL)
def test_every_setting_is_described_for_people(cls: type[CommonSettings]) -> None:
    rows = describe(cls)
    assert [name for name, _, _ in rows] == [PREFIX + name.upper() for name in cls.__struct_fields__]
    assert all(text.endswith(".") for _, _, text in rows)
