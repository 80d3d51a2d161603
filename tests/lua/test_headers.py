"""Each script documents its arguments and replies, compiles as shipped and keeps the rules for Lua."""

import ast
import inspect
import re
from collections import Counter
from importlib.resources import files

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.linker import DECLARED, IN_CLUSTER, LIBRARIES, declarations, link, names_in
from director.broker.scripts import NAMED, Scripts
from director.core.ids import PredictionId, QueueName, new_prediction_id, partition_of

LUA = files("lua")
NAMES = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))
PARTS = sorted(path.name.removesuffix(".lua") for path in LUA.joinpath("lib").iterdir())
LOGS = {"lib/log": "keys.log()", "note": "changes"}
FLAGS = {
    # what accepts is refused when memory is full
    "#!lua": {
        *("amend", "arrive", "bind", "configure", "deploy", "enqueue", "enlist", "open_batch", "retain", "revive"),
    },
    "#!lua flags=no-writes": {"demand", "get", "replay", "stats", "story", "survey"},
}
PLACE = r"(?:key|arg) \+ "  # of an item, see lib/batch


def text(name: str) -> str:
    return LUA.joinpath(f"{name}.lua").read_text(encoding="utf-8")


def header(name: str) -> str:
    return "\n".join(line for line in text(name).splitlines()[1:] if line.startswith("--"))


def code(name: str) -> str:
    return re.sub(r"--.*", "", text(name))


def test_every_script_has_a_typed_call_and_every_call_a_script() -> None:
    assert [name for name in dir(Scripts) if not name.startswith("_")] == NAMES


def test_enqueue_finds_the_fields_that_it_needs_in_front() -> None:
    assert NAMED[:7] == ("account", "queue", "lane", "shard", "cost", "tokens", "start_after")
    assert "for i = arg + 13, arg + 25, 2 do" in code("enqueue")


@pytest.mark.parametrize("name", NAMES)
async def test_each_script_compiles(name: str, redis: Redis) -> None:
    assert await redis.script_load(link(name))


def test_a_script_ships_exactly_what_it_reaches() -> None:
    declared = {name.replace(".", "_", 1) for of in declarations() for name in of.declares}
    for name in NAMES:
        shipped = re.sub(r"--.*|'[^'\n]*'", "", link(name))
        brought = declared & set(re.findall(r"^local function (\w+)", shipped, re.MULTILINE))
        idle = [found for found in brought if len(re.findall(rf"\b{found}\b", shipped)) == 1]
        assert not idle, name


def test_a_library_uses_only_what_stands_before_it() -> None:
    """A name that is declared later would be a global, which no script has."""
    before: set[str] = set()
    for of in declarations():
        before |= of.declares
        assert of.uses <= before, of.text


@pytest.mark.parametrize("name", [*NAMES, *(f"lib/{library}" for library in LIBRARIES)])
def test_a_file_says_what_it_takes_from_each_library(name: str) -> None:
    own = name.removeprefix("lib/") + "."
    said = re.findall(r"^-- uses (\w+): +((?:[^\n,]+(?:,\n-- +|, )?)+)$", header(name), re.MULTILINE)
    names = {f"{library}.{one}" for library, listed in said for one in re.findall(r"\w+", listed)}
    assert names == {used for used in names_in(text(name)) if not used.startswith(own)}


@pytest.mark.parametrize("name", NAMES)
def test_a_header_gives_memory_flags_a_name_and_a_reply(name: str) -> None:
    shebang, title, *_ = text(name).splitlines()
    wanted = next((flag for flag, whose in FLAGS.items() if name in whose), "#!lua flags=allow-oom")
    assert shebang == wanted
    assert title.startswith(f"-- {name}: ")
    assert re.search(r"^--   Returns  \S", header(name), re.MULTILINE)
    assert re.search(r"\breturn\b", code(name))


class Calls(ast.NodeVisitor):
    """Each call in `Scripts`: the script, and the expressions of its keys and of its arguments."""

    def __init__(self) -> None:
        self.found: list[tuple[str, list[ast.expr], list[ast.expr]]] = []
        self._lists: dict[str, list[ast.expr]] = {}

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and isinstance(node.value, ast.List):
            self._lists[target.id] = node.value.elts
        self.generic_visit(node)

    visit_AnnAssign = visit_Assign  # noqa: N815 - the name that ast.NodeVisitor looks for

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self._lists:
            words = node.value.elts if isinstance(node.value, ast.List) else [ast.Starred(node.value)]
            self._lists[node.target.id] = [*self._lists[node.target.id], *words]

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Attribute(attr="_call" | "_word"), args=[ast.Constant(str(script)), names, args]):
                self.found.append((script, self._words(names), self._words(args)))
        self.generic_visit(node)

    def _words(self, given: ast.expr) -> list[ast.expr]:
        if isinstance(given, ast.Name):
            return self._lists[given.id]
        assert isinstance(given, ast.List), ast.unparse(given)
        return given.elts


def calls() -> Calls:
    found = Calls()
    found.visit(ast.parse(inspect.getsource(Scripts)))
    return found


def may_be_called(given: ast.expr) -> set[str]:
    """Return what a header may call it: `ms(lease_s)` is `lease_ms`, `counts.bytes` is `bytes` or `counts_bytes`."""
    found = set[str]()
    for node in ast.walk(given):
        if isinstance(node, ast.Name):
            found.add(node.id.strip("_").lower())
        elif isinstance(node, ast.Attribute):
            found |= {node.attr, ast.unparse(node).replace(".", "_")}
    return found | {f"{name.removesuffix('_s')}_ms" for name in found if name.endswith("_s")}


def test_each_script_is_called_in_one_place() -> None:
    assert Counter(script for script, _, _ in calls().found) == Counter(NAMES)


@pytest.mark.parametrize(("name", "names", "args"), calls().found)
def test_a_call_hands_over_what_the_header_names_in_its_order(
    name: str, names: list[ast.expr], args: list[ast.expr]
) -> None:
    for what, given in (("KEYS", names), ("ARGV", args)):
        described = re.findall(rf"^--   {what}\[\d+(…?)\] +(\w+)", header(name), re.MULTILINE)
        wanted = [called for rest, called in described if not rest]
        if what == "ARGV" and re.search(rf"keys\.clock\(ARGV\[{len(described) + 1}\]\)", code(name)):
            wanted.append("now_ms")  # lua/README.md has it once for all
        given, rest = given[: len(wanted)], given[len(wanted) :]
        assert len(given) == len(wanted)
        for word, called in zip(given, wanted, strict=True):
            assert called in may_be_called(word), f"{what} {called} of {name} is {ast.unparse(word)}"
        assert bool(rest) == any(rest for rest, _ in described), f"{what} beyond those that are named"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["KEYS", "ARGV"])
def test_a_header_describes_exactly_the_arguments_that_the_script_reads(name: str, what: str) -> None:
    described = [int(n) for n in re.findall(rf"^--   {what}\[(\d+)(?:…)?\]", header(name), re.MULTILINE)]
    assert described == list(range(1, len(described) + 1))
    used = {int(n) for n in re.findall(rf"{what}\[(?:{PLACE})?(\d+)\]", code(name))}
    rest = re.search(rf"^--   {what}\[(\d+)…\]", header(name), re.MULTILINE)
    if rest:
        assert re.search(rf"for i = (?:{PLACE})?{rest[1]}\b[^\n]*, (?:#{what}|last|arg \+ \d+), 2 do", code(name)), (
            "the rest is read by twos from there on"
        )
        used.add(int(rest[1]))
    elif what == "KEYS":
        used.add(1)  # all keys carry its hash tag, which lib/keys reads
    elif used and f"clock(ARGV[{max(used)}])" in code(name):
        used.remove(max(used))  # the last argument is now_ms: lua/README.md has it once for all
    assert used == set(described)


def test_each_library_is_linked_and_names_itself() -> None:
    assert sorted([*(name.removeprefix("lib/") for name in IN_CLUSTER), *LIBRARIES]) == PARTS
    for part in PARTS:
        assert text(f"lib/{part}").startswith(f"-- lib/{part}: ")


@pytest.mark.parametrize("part", LIBRARIES)
def test_a_part_is_functions_and_lines_of_values(part: str) -> None:
    """Only these are shipped with a script that uses them."""
    rest = re.sub(r"^--.*", "", DECLARED.sub("", text(f"lib/{part}")), flags=re.MULTILINE)
    assert not rest.strip()


@pytest.mark.parametrize("name", [*NAMES, *(f"lib/{part}" for part in PARTS)])
def test_no_script_walks_the_keyspace_decodes_a_payload_or_trims_a_stream(name: str) -> None:
    forbidden = r"'(?:KEYS|SCAN|[HSZ]SCAN|XTRIM|MAXLEN)'|cjson|cmsgpack\.unpack|math\.random|BLOCK"
    assert re.findall(forbidden, code(name)) == (["'MAXLEN'"] if name in LOGS else []), "only the logs are cut"
    assert re.findall(r"redis\.call\('XADD', ([^,]+), 'MAXLEN'", code(name)) == ([LOGS[name]] if name in LOGS else [])
    for call in re.findall(r"redis\.call\('(?:P?EXPIRE(?:AT)?|DEL|UNLINK)',([^\n]+)", code(name)):
        assert "stream" not in call, "a work stream has no lifetime"


@pytest.mark.parametrize("name", [*NAMES, *(f"lib/{part}" for part in PARTS)])
def test_scripts_ask_for_pending_entries_one_at_a_time(name: str) -> None:
    """XPENDING's summary takes longer with every consumer there is, and a range as long as it likes."""
    for asked in re.findall(r"'XPENDING',([^)]*)\)", code(name)):
        assert re.fullmatch(r" stream, keys\.GROUP, '-', '\+', 1, consumer", asked)


def test_only_retire_removes_consumers_after_a_check_for_pending_entries() -> None:
    """DELCONSUMER drops what is pending for it: such an entry would never be delivered again."""
    assert [name for name in NAMES if "DELCONSUMER" in code(name)] == ["retire"]
    assert not [part for part in PARTS if "DELCONSUMER" in code(f"lib/{part}")]
    before, _, _ = code("retire").partition("DELCONSUMER")
    assert "'XPENDING'" in before
    assert "if streams then" in before


async def test_scripts_spell_keys_as_python_does(redis: Redis, queue: QueueName) -> None:
    prediction_id: PredictionId = new_prediction_id(model="acme/echo", now_ms=1)
    spelled = {
        "keys.record(id)": keys.record(prediction_id),
        "keys.input(id)": keys.input_data(prediction_id),
        "keys.output(id)": keys.output_data(prediction_id),
        "keys.events(id)": keys.events(prediction_id),
        "keys.channel(id)": keys.channel(prediction_id),
        "keys.owed()": keys.owed(partition_of(prediction_id)),
        "keys.log()": keys.log(partition_of(prediction_id)),
        "keys.unspent()": keys.unspent(partition_of(prediction_id)),
        "keys.unsettled()": keys.unsettled(partition_of(prediction_id)),
        "keys.ledger('202611', 'a')": keys.ledger(partition_of(prediction_id), "202611", "a"),
        "keys.ledger_accounts('202611')": keys.ledger_accounts(partition_of(prediction_id), "202611"),
        "keys.stream(queue, 'low', 7)": keys.stream(queue, "low", 7),
        "keys.kick('d1')": keys.kick_channel("d1"),
        "keys.ends('a1')": keys.ends_channel("a1"),
        "keys.GROUP": keys.GROUP,
        **{
            f"keys.queue(queue, '{what}')": getattr(keys, what)(queue)
            for what in ("meta", "bell", "live", "lease", "last", "delayed", "deadline", "dead", "directors")
        },
    }
    spelled |= {"keys.QUEUE": queue}
    library = "local keys = {}\n" + text("lib/keys")
    lines = [library, "local id, queue = ARGV[1], ARGV[2]", f"return {{ {', '.join(spelled)} }}"]
    answer = await redis.eval("\n".join(lines), 1, keys.meta(queue), prediction_id, queue)
    assert [name.decode() for name in answer] == list(spelled.values())
    of_record = [library, "return keys.ID"]
    assert await redis.eval("\n".join(of_record), 1, keys.record(prediction_id)) == prediction_id.encode()
    functions = set(re.findall(r"^function (keys\.\w+)\(", text("lib/keys"), re.MULTILINE)) - {"keys.clock"}
    assert functions <= {name.partition("(")[0] for name in spelled}, "a key that this test does not compare"


async def test_scripts_use_no_queue_key_that_python_cannot_spell(queue: QueueName) -> None:
    for name in [*NAMES, *(f"lib/{part}" for part in PARTS)]:
        for what in re.findall(r"keys\.queue\([\w.]+, '(\w+)'\)", code(name)):
            assert getattr(keys, what)(queue).endswith(f":{what}")


@pytest.mark.parametrize("name", [*NAMES, *(f"lib/{library}" for library in LIBRARIES)])
def test_no_local_is_named_as_a_library(name: str) -> None:
    """Else its functions cannot be reached there, and a reader takes the one for the other."""
    plain = code(name)
    lists = re.findall(r"\blocal ([a-z]\w*(?:, \w+)*)|\bfor ([\w, ]+) (?:in|=)", plain)
    lists += [("", given) for given in re.findall(r"\bfunction(?: [\w.]+)? ?\(([\w, ]+)\)", plain)]
    named = {each for pair in lists for each in re.findall(r"\w+", " ".join(pair))} - {"function"}
    assert named & set(LIBRARIES) == set()
