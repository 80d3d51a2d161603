import pytest

from director.core.errors import SettingsError
from director.core.model_config import check_server_url
from director.execution.main import open_directors
from tests.support.live_director import settings_for

URLS = [
    "http://127.0.0.1:5000",
    "https://gpu-1.internal",
    "http://[::1]:5000",
    "http://model_server/base/",
    "http://10.1:5000",
]


@pytest.mark.parametrize("url", URLS)
def test_the_address_of_a_server_is_taken_as_it_is(url: str) -> None:
    check_server_url(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:5000", "no http:// or https://"),
        ("127.0.0.1:5000", "no http:// or https://"),
        ("/var/run/cog.sock", "no http:// or https://"),
        ("ftp://gpu-1:5000", "no http:// or https://"),
        ("http://", "no host"),
        ("http://:5000", "no host"),
        ("http://gpu-1:99999", "malformed"),
        ("http://gpu-1:port", "malformed"),
        ("http://[::1:5000", "malformed"),
        ("http://gpu-1:0", "no port"),
        ("http://gpu..internal:5000", "neither a name in ASCII nor an address"),
        (f"http://{'a' * 64}:5000", "neither a name in ASCII nor an address"),
        ("http://10.0.0.256:5000", "neither a name in ASCII nor an address"),
        ("http://gpü-1:5000", "neither a name in ASCII nor an address"),
        ("http://gpu-1\\evil:5000", "neither a name in ASCII nor an address"),
        ("http://gpu-1:5000 ", "a space"),
        ("http://gpu-1\n:5000", "a control character"),
        ("http://gpu-1:5000?token=hush", "a query"),
        ("http://gpu-1:5000#hush", "a fragment"),
        ("http://me:hush@gpu-1:5000", "a user or a password"),
        ("http://me:hu@sh@gpu-1:5000", "a user or a password"),
        ("me:hush@gpu-1:5000", "no http:// or https://"),
    ],
)
def test_what_is_wrong_with_one_is_said_and_no_secret_in_it(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as told:
        check_server_url(url)
    assert "hush" not in str(told.value)
    assert "hu@" not in str(told.value)


@pytest.mark.parametrize(
    ("servers", "why"),
    [([URLS[0], "http://me:hush@gpu-1:5000"], "gpu-1:5000"), ([URLS[0], URLS[1], URLS[0] + "/"], "twice")],
    ids=["malformed", "twice"],
)
async def test_a_director_does_not_start_with_such_servers(
    servers: list[str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SettingsError, match=why):
        async with open_directors(settings_for("redis://127.0.0.1:9", servers)):
            pass
    assert "hush" not in caplog.text
