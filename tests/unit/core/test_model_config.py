from typing import Any

import msgspec
import pytest

from director.core.errors import SettingsError
from director.core.model_config import ModelConfig, judge, over, usable
from director.core.runner_config import HttpConfig, runner_config
from director.core.settings import DirectorSettings

STARTED = DirectorSettings(model="acme/echo", servers=("http://a:1",), attempts=2, run_limit_s=10)


def test_what_is_not_said_is_as_the_director_was_started() -> None:
    assert over(ModelConfig(), STARTED) == STARTED


def test_each_field_that_is_no_other_is_a_setting_of_its_name() -> None:
    said = over(ModelConfig(attempts=7, slots=3, lifetime_s=0), STARTED)
    assert (said.attempts, said.concurrent_predictions, said.lifetime_s, said.run_limit_s) == (7, 3, 0, 10)


def test_a_runner_is_driven_as_it_says_whatever_the_settings_say() -> None:
    said = over(ModelConfig(runner={"kind": "http", "path": "/run"}), STARTED)
    config = runner_config(said.runner, said.runner_config)
    assert isinstance(config, HttpConfig)
    assert config.path == "/run"


def test_a_template_names_its_kind() -> None:
    assert over(ModelConfig(runner={"template": "tei"}), STARTED).runner == "http"


def test_servers_are_for_a_director_that_has_none_beside_it() -> None:
    config = ModelConfig(servers=("http://b:2",))
    assert over(config, STARTED).servers == ("http://a:1",)
    assert over(config, msgspec.structs.replace(STARTED, servers=())).servers == ("http://b:2",)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"runner": {"kind": "cog", "x": 1}}, "runner"),
        ({"runner": {}}, "kind"),
        ({"servers": ("ftp://a",)}, "servers"),
        ({"servers": ("http://user:secret@a",)}, "servers"),
        ({"servers": ("http://a", "http://a/")}, "servers"),
    ],
    ids=["a field that no runner has", "no kind", "no http", "a password", "one twice"],
)
def test_unusable_configuration_is_refused_with_its_field(said: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        judge(ModelConfig(**said))
    assert "secret" not in str(refused.value)


def test_servers_that_nothing_can_be_sent_to_are_left_out() -> None:
    good = ModelConfig(servers=("http://b:2",), attempts=7)
    assert usable(good) == (good, ())
    both = ModelConfig(servers=("http://b:2", "http://user:secret@10.0.0.256:5000/x?key=1"), attempts=7)
    found, [wrong] = usable(both)
    assert found == good
    assert wrong == "'10.0.0.256:5000/x' has a host that is neither a name in ASCII nor an address"
    assert usable(ModelConfig(servers=("http://10.0.0.256:5000",)))[0] == ModelConfig()


@pytest.mark.parametrize("text", ['{"attempts":0}', '{"attempts":21}', '{"slots":0}', '{"run_limit_s":0}', '{"x":1}'])
def test_what_is_out_of_bounds_is_no_configuration(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ModelConfig)
