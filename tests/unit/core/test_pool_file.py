from pathlib import Path

import msgspec
import pytest

from director.core.devices import Device, Launch, Model, Place
from director.core.errors import SettingsError
from director.core.json_pointer import Pointer
from director.core.pool_file import MOST_BYTES, MOST_MODELS, MOST_SERVERS, Hosted, PoolFile, label_of, read_pool
from director.core.runner_config import CogConfig, HttpConfig, runner_config
from director.core.settings import DirectorSettings, load

ONE = '[[model]]\nname = "acme/one"\nservers = ["http://gpu-1:5000"]\n'
TWO = '[[model]]\nname = "acme/two"\nservers = ["http://gpu-2:5000"]\n'


def read(tmp_path: Path, text: str, base: DirectorSettings | None = None) -> tuple[DirectorSettings, ...]:
    path = tmp_path / "pool.toml"
    path.write_text(text)
    return tuple(table.settings for table in read_pool(path, base or DirectorSettings()).tables)


def test_a_table_is_the_settings_of_one_model(tmp_path: Path) -> None:
    first = 'version = "' + "a" * 64 + '"\nkind = "procedure"\nslots = 3\nlease_s = 7\nattempts = 5\nbatch_cost = 1.5\n'
    one, two = read(tmp_path, ONE + first + TWO)
    assert one == DirectorSettings(
        model="acme/one",
        servers=("http://gpu-1:5000",),
        version="a" * 64,
        kind="procedure",
        concurrent_predictions=3,
        lease_s=7.0,
        attempts=5,
        batch_cost=1.5,
    )
    assert two == DirectorSettings(model="acme/two", servers=("http://gpu-2:5000",))
    assert [label_of(one), label_of(two)] == ["acme/one:aaaaaaaaaaaa~procedure", "acme/two"]


def test_what_a_table_does_not_say_is_as_the_environment_has_it(tmp_path: Path) -> None:
    base = load(
        DirectorSettings, {"DIRECTOR_LEASE_S": "9", "DIRECTOR_REDIS_URL": "redis://r:1", "DIRECTOR_ATTEMPTS": "2"}
    )
    one, two = read(tmp_path, ONE + "lease_s = 4\n" + TWO, base)
    assert (one.lease_s, one.attempts, one.redis_url) == (4, 2, "redis://r:1")
    assert (two.lease_s, two.attempts, two.redis_url) == (9, 2, "redis://r:1")


def test_runner_config_is_a_table_or_a_file_beside_the_pool_file(tmp_path: Path) -> None:
    (tmp_path / "kserve.json").write_text('{"template": "kserve", "model": "resnet"}')
    table = '[model.runner_config]\nkind = "http"\npath = "/predict"\noutput = "/result"\n'
    file = 'runner_config = "kserve.json"\n'
    third = '[[model]]\nname = "acme/three"\nrunner = "cog"\nservers = ["http://gpu-3:5000"]\n'
    configs = [
        runner_config(each.runner, each.runner_config) for each in read(tmp_path, ONE + table + TWO + file + third)
    ]
    assert [type(config) for config in configs] == [HttpConfig, HttpConfig, CogConfig]
    assert isinstance(configs[0], HttpConfig)
    assert (configs[0].path, configs[0].output) == ("/predict", Pointer("/result"))


def test_servers_that_have_several_models_may_be_of_several_tables(tmp_path: Path) -> None:
    shared = '[[model]]\nname = "acme/{}"\nrunner = "openai"\nservers = ["http://gpu-1:8000"]\n'
    assert len(read(tmp_path, shared.format("one") + shared.format("two"))) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[[model]\n", "is not TOML", id="no toml"),
        pytest.param("", "needs one", id="empty"),
        pytest.param("[model]\n", "needs one", id="one table"),
        pytest.param("model = [1]\n", "needs one", id="no tables"),
        pytest.param('redis_url = "r"\n' + ONE, "`redis_url` is in no table", id="top level"),
        pytest.param(ONE + "[other]\n", "`other` is in no table", id="other table"),
        pytest.param(ONE + TWO + "leas_s = 1\n", r"2 \('acme/two'\): `leas_s` is not a field", id="unknown"),
        pytest.param(
            ONE + "redis_url = 'r'\n", "`redis_url` applies to the whole process: set DIRECTOR_REDIS", id="shared"
        ),
        pytest.param(ONE + "health_port = 1\n", "`health_port` applies to the whole process", id="port"),
        pytest.param(ONE + "model = 'acme/x'\n", "`model` is called `name` here", id="long name"),
        pytest.param(ONE + "lease_s = 0\n", r"1 \('acme/one'\): `lease_s`: .* > 0", id="bound"),
        pytest.param(ONE + "lease_s = inf\n", "`lease_s`: expected a finite number", id="infinite"),
        pytest.param(ONE + "lease_s = nan\n", "`lease_s`: expected a finite number", id="nan"),
        pytest.param(ONE + "lease_s = 2020-01-01\n", "`lease_s`: .*date", id="date"),
        pytest.param(ONE + 'attempts = "3"\n', "`attempts`: Expected a whole number, got text", id="text"),
        pytest.param(ONE + "slots = 0\n", "`slots`: .* >= 1", id="slots"),
        pytest.param(ONE + 'kind = "party"\n', "`kind`: .*party", id="kind"),
        pytest.param(ONE.replace("acme/one", "ONE"), r"1 \('ONE'\): `name`: ", id="bad name"),
        pytest.param(ONE.replace("name", "#"), r"\[\[model\]\] 1: `name` is missing", id="no name"),
        pytest.param(ONE.replace("servers", "#"), "`servers` is missing", id="no servers"),
        pytest.param(ONE.replace('["http://gpu-1:5000"]', '"http://gpu-1:5000"'), "`servers`: .*array", id="one text"),
        pytest.param(ONE.replace('"http://gpu-1:5000"', "1"), "`servers`: Expected text", id="no text"),
        pytest.param(ONE + 'runner = "http"\n', "`runner_config`: .*`path`", id="no path"),
        pytest.param(ONE + "runner = 1\n", "`runner`: expected text", id="no kind"),
        pytest.param(ONE + "runner_config = 1\n", "`runner_config`: expected a table", id="no config"),
        pytest.param(ONE + 'runner_config = "no.json"\n', "`runner_config`: .*No such file", id="no file"),
        pytest.param(ONE + 'runner_config = {kind = "cog", slow = 1}\n', "`runner_config`: .*slow", id="unknown in it"),
        pytest.param(ONE + 'runner = "http"\nrunner_config = {kind = "cog"}\n', "the runner is 'http'", id="two kinds"),
        pytest.param(ONE + ONE, r"2 \('acme/one'\): `name`: there is another table for acme/one", id="twice"),
        pytest.param(ONE + TWO.replace("gpu-2:5000", "gpu-1:5000/"), "also of acme/one, and a Cog", id="one server"),
        pytest.param(ONE * (MOST_MODELS + 1), f"at most {MOST_MODELS}", id="many"),
        pytest.param(
            ONE.replace('"http://gpu-1:5000"', ", ".join(f'"http://g{i}"' for i in range(MOST_SERVERS + 1))),
            "`servers`: more than",
            id="many servers",
        ),
        pytest.param(ONE.replace("http://gpu-1:5000", "gpu-1"), "`servers` URL .* in front", id="no scheme"),
        pytest.param(ONE.replace("http://", "http://me:hush@"), "`servers` URL .* has a user", id="secret"),
        pytest.param(ONE.replace('["', '["http://gpu-1:5000/", "'), "`servers`: one is given twice", id="server twice"),
        pytest.param("#" * (MOST_BYTES + 1), "is longer than", id="long"),
        pytest.param("a = " + "[" * 9999, "is not TOML", id="deep"),
    ],
)
def test_mistake_is_reported_in_one_line_with_its_table_and_field(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"pool\.toml.*{why}") as told:
        read(tmp_path, text)
    assert "hush" not in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_unreadable_or_missing_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_pool(path, DirectorSettings())
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not TOML"):
        read_pool(path, DirectorSettings())


@pytest.mark.parametrize(
    "field", ["model", "version", "kind", "latest", "servers", "server_header", "runner", "runner_config"]
)
def test_the_environment_names_no_model_beside_a_file(field: str, tmp_path: Path) -> None:
    other = {"kind": "training", "latest": True, "servers": ("http://x",), "runner": "http"}.get(field, "acme/x")
    base = msgspec.structs.replace(DirectorSettings(), **{field: other})
    with pytest.raises(SettingsError, match=f"DIRECTOR_{field.upper()} is of one model"):
        read(tmp_path, ONE, base)


GIB = 1 << 30
GPUS = '[[device]]\nname = "gpu0"\nmemory = "80GiB"\n[[device]]\nname = "gpu1"\nmemory = "24 GiB"\n'
OWN = '[[model]]\nname = "acme/own"\ncommand = ["serve", "--port", "{port}"]\n'


def pool(tmp_path: Path, text: str) -> PoolFile:
    path = tmp_path / "pool.toml"
    path.write_text(text)
    return read_pool(path, DirectorSettings())


def hosted(tmp_path: Path, text: str) -> Hosted:
    [table] = pool(tmp_path, GPUS + text).tables
    assert table.hosted is not None
    return table.hosted


def test_devices_are_shown_by_their_number_unless_the_file_says_how(tmp_path: Path) -> None:
    other = '[[device]]\nname = "xpu"\nmemory = "512MB"\nenv = { ZE_AFFINITY_MASK = "3" }\nused = ["xpu-used", "3"]\n'
    assert pool(tmp_path, GPUS + other + ONE).devices == (
        Device("gpu0", 80 * GIB, {"CUDA_VISIBLE_DEVICES": "0"}),
        Device("gpu1", 24 * GIB, {"CUDA_VISIBLE_DEVICES": "1"}),
        Device("xpu", 512_000_000, {"ZE_AFFINITY_MASK": "3"}, ("xpu-used", "3")),
    )


def test_a_model_with_a_command_shares_devices_and_needs_no_servers(tmp_path: Path) -> None:
    text = OWN + (
        'slots = 2\nrun_limit_s = 60\nmemory = "12GiB"\ndevice = "gpu0"\nload_s = 20\nmin_loaded_s = 5\nweight = 2\n'
        'max_wait_s = 90\nkeep = true\nenv = { HF_HOME = "/models" }\nready = "/health"\n'
        'sleep = "/sleep"\nwake = "/wake"\n'
    )
    [table] = pool(tmp_path, GPUS + text).tables
    assert (table.settings.model, table.settings.servers) == ("acme/own", ())
    assert table.hosted == Hosted(
        Model(
            name="acme/own",
            places=({"gpu0": 12 * GIB},),
            keep=True,
            weight=2.0,
            min_loaded_s=5.0,
            max_wait_s=90.0,
            run_limit_s=60.0,
            slots=2,
        ),
        Launch(
            command=("serve", "--port", "{port}"),
            env={"HF_HOME": "/models"},
            ready="/health",
            sleep="/sleep",
            wake="/wake",
            load_s=20.0,
        ),
    )
    assert table.hosted.model.name == label_of(table.settings)


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ("", ({},)),
        ('memory = "1GiB"\ndevice = "any"\n', ({"gpu0": GIB}, {"gpu1": GIB})),
        ('devices = { gpu0 = "40GiB", gpu1 = "1.5GiB" }\n', ({"gpu0": 40 * GIB, "gpu1": 3 * GIB // 2},)),
    ],
)
def test_a_model_takes_no_device_or_any_or_several(fields: str, places: tuple[Place, ...], tmp_path: Path) -> None:
    assert hosted(tmp_path, OWN + fields).model.places == places


def test_a_cog_folder_lies_beside_the_pool_file(tmp_path: Path) -> None:
    assert hosted(tmp_path, '[[model]]\nname = "acme/own"\nfolder = "painter"\n').launch.folder == str(
        tmp_path / "painter"
    )


def test_memory_of_sleeping_servers_is_set_aside(tmp_path: Path) -> None:
    sleeper = 'memory = "40GiB"\ndevice = "gpu0"\nsleep = "/sleep"\nwake = "/wake"\nasleep = "2GiB"\n'
    other = OWN.replace("own", "other") + 'memory = "78GiB"\ndevice = "gpu0"\n'
    read = pool(tmp_path, GPUS + OWN + sleeper + other)
    assert (read.devices[0].memory, read.devices[0].asleep) == (78 * GIB, 2 * GIB)
    assert [each.hosted and each.hosted.model.places for each in read.tables] == [
        ({"gpu0": 38 * GIB},),
        ({"gpu0": 78 * GIB},),
    ]


KEPT = 'memory = "50GiB"\ndevice = "gpu0"\nkeep = true\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (OWN + 'memory = "25GiB"\ndevice = "gpu1"\n', "own never fits: 25 GiB for it = 25 GiB, and gpu1 has 24 GiB"),
        (
            OWN + KEPT + OWN.replace("own", "two") + KEPT,
            r"own never fits: 50 GiB for it \+ 50 GiB for acme/two \(kept\) = 100 GiB, and gpu0 has 80 GiB",
        ),
        (
            OWN + KEPT + OWN.replace("own", "two") + 'memory = "31GiB"\ndevice = "any"\n',
            r"two never fits: 31 GiB for it \+ 50 GiB for acme/own \(kept\) = 81 GiB, and gpu0 has 80 GiB",
        ),
        (
            OWN
            + 'memory = "4GiB"\ndevice = "gpu1"\nsleep = "/s"\nwake = "/w"\nasleep = "1GiB"\n'
            + OWN.replace("own", "two")
            + 'memory = "24GiB"\ndevice = "gpu1"\n',
            r"two never fits: 24 GiB for it \+ 1 GiB for servers that sleep = 25 GiB, and gpu1 has 24 GiB",
        ),
    ],
)
def test_a_file_that_cannot_be_satisfied_is_refused_with_the_sum(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=why):
        pool(tmp_path, GPUS + text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[device]]\nmemory = "1GiB"\n', r"\[\[device\]\] 1: `name` is missing"),
        ('[[device]]\nname = "a"\n', r"1 \('a'\): `memory` is missing"),
        ('[[device]]\nname = "a"\nmemory = "1"\n', '`memory`: expected a size, as in "80GiB"'),
        ('[[device]]\nname = "a"\nmemory = 80\n', "`memory`: expected a size"),
        ('[[device]]\nname = "a"\nmemory = "0GiB"\n', "`memory`: expected a size"),
        ('[[device]]\nname = "a"\nmemory = "9GiB"\ncolour = 1\n', "colour"),
        ('[[device]]\nname = "a b"\nmemory = "9GiB"\n', "`name`: "),
        ('[[device]]\nname = "any"\nmemory = "9GiB"\n', "`name`: 'any' is taken"),
        (GPUS + '[[device]]\nname = "gpu1"\nmemory = "9GiB"\n', "3 .*`name`: 'gpu1' is taken"),
        ("device = 1\n", "needs one .*device"),
        (OWN + 'servers = ["http://gpu-1:5000"]\n', "`servers`: a model has these, or a server"),
        (ONE + "keep = true\n", "`servers`: a model has these, or a server"),
        (OWN + 'folder = "a"\n', "`command`: give either this or `folder`"),
        (OWN.replace("command", "#") + "keep = true\n", "`command`: give either"),
        (OWN + 'memory = "1GiB"\n', "`memory` and `device` go together"),
        (OWN + 'device = "gpu0"\n', "`memory` and `device` go together"),
        (OWN + 'memory = "1GiB"\ndevice = "gpu7"\n', "`device`: there is no .* 'gpu7'"),
        (OWN + 'memory = "1GiB"\ndevice = "any"\n', "`device`: there is no .*device"),
        (OWN + 'memory = "1GiB"\ndevices = { gpu0 = "1GiB" }\n', "`devices` says the memory"),
        (OWN + 'devices = "gpu0"\n', "`devices`: expected a table"),
        (GPUS + OWN + 'memory = "1GiB"\ndevice = "any"\nkeep = true\n', "`keep`: name its device"),
        (OWN + 'sleep = "/sleep"\n', "`sleep` and `wake` go together"),
        (OWN + 'asleep = "1GiB"\n', "`asleep` goes with `sleep`"),
        (OWN + 'ready = "health"\n', "`ready`: "),
        (OWN + "weight = 0\n", "`weight`: .* >= 0.001"),
        (OWN + 'env = { "A=B" = "1" }\n', "`env`"),
        (OWN + "load_s = -1\n", "`load_s`: .* >= 0"),
    ],
)
def test_mistakes_of_devices_are_reported_with_table_and_field(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"pool\.toml.*{why}") as told:
        pool(tmp_path, text)
    assert len(str(told.value).splitlines()) == 1
