import pytest

from api.models.models import cog_version


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        ("coglet 0.23.1", "0.23.1"),
        ("cog 0.16.12 (python)", "0.16.12"),
        ("cog 0.15.0rc1 (python)", "0.15.0rc1"),
        ("0.23.1", "0.23.1"),
        ("cog (python)", "cog (python)"),
        ("openai", "openai"),
    ],
)
def test_version_of_cog_is_a_number_alone(server: str, shown: str) -> None:
    assert cog_version(server) == shown
