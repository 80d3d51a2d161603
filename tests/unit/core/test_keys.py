import inspect
import re

from director.broker import keys
from director.core.ids import FileId, QueueName, new_prediction_id, partition_of
from tests.site.reference import documented_keys

ID = new_prediction_id(model="acme/echo", now_ms=1_800_000_000_000)
QUEUE = QueueName("acme/echo:a1a1a1a1a1a1")

OF_PREDICTION = (keys.record, keys.input_data, keys.output_data, keys.events, keys.channel)
OF_QUEUE = (
    keys.meta,
    keys.bell,
    keys.live,
    keys.lease,
    keys.last,
    keys.delayed,
    keys.deadline,
    keys.dead,
    keys.directors,
)
KEYS = {
    name
    for name, function in inspect.getmembers(keys, inspect.isfunction)
    if function.__module__ == keys.__name__ and not name.startswith("_")
} - {"tag", "queue_partition"}
# type · what it has, and its writer or lifetime
DOCUMENTED = re.compile(r"(string|hash|stream|list|set|zset|channel) · \S")


def test_all_keys_of_a_model_carry_one_hash_tag() -> None:
    names = [
        *(key(ID) for key in OF_PREDICTION),
        *(key(QUEUE) for key in OF_QUEUE),
        keys.stream(QUEUE, "high", 31),
        keys.owed(partition_of(ID)),
        keys.idempotency(account="acme", model="acme/echo", digest="d"),
    ]
    assert {re.match(r"\{p\d+\}", name)[0] for name in names} == {"{p721}"}  # type: ignore[index]
    assert len(set(names)) == len(names), "two keys of one name"


def test_keys_are_spelled_as_they_were() -> None:
    assert keys.record(ID) == f"{{p721}}:rec:{ID}"
    assert keys.events(ID) == f"{{p721}}:ev:{ID}"
    assert keys.meta(QUEUE) == "{p721}:q:acme/echo:a1a1a1a1a1a1:meta"
    assert keys.stream(QUEUE, "low", 3) == "{p721}:q:acme/echo:a1a1a1a1a1a1:low:s3"
    assert keys.file("acme", FileId("f")) == "{a:acme}:file:f"
    assert keys.files("acme") == "{a:acme}:files"
    assert keys.listing("acme") == "{a:acme}:listing"
    assert keys.idempotency(account="acme", model="acme/echo", digest="d") == "{p721}:idem:acme:acme/echo:d"


def test_each_key_says_its_type_and_its_writer_or_lifetime() -> None:
    assert {name for name, said in documented_keys().items() if DOCUMENTED.match(said)} == KEYS


def test_each_key_says_who_makes_it_grow_and_what_bounds_it() -> None:
    assert set(keys.GROWTH) == {getattr(keys, name) for name in KEYS}
    for how in keys.GROWTH.values():
        who, bound = how.split(": ", 1)
        assert who in ("callers", "directors", "keepers", "operators", "the service"), how
        assert bound, how


def test_what_callers_grow_is_counted_or_has_a_fixed_number() -> None:
    for how in keys.GROWTH.values():
        who, bound = how.split(": ", 1)
        if who == "callers":
            assert bound.startswith(("counted", "at most", "one of each account")), how


def test_a_function_that_says_permanent_is_on_the_closed_list() -> None:
    for name in KEYS:
        if "Permanent." in (inspect.getdoc(getattr(keys, name)) or ""):
            assert ("s" if name == "stream" else name) in keys.PERMANENT


def test_the_closed_list_names_only_keys_that_exist_and_says_why() -> None:
    for name, why in keys.PERMANENT.items():
        assert callable(getattr(keys, "stream" if name == "s" else name))
        assert why


def test_a_model_keeps_its_partition_over_its_versions() -> None:
    other = QueueName("acme/echo:b2b2b2b2b2b2")
    assert keys.queue_partition(QUEUE) == keys.queue_partition(other) == partition_of(ID)
