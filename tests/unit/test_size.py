"""A class is one subject: a larger one is two, unless its reason stands here."""

from typing import Final

from tests.support.size import ROOT, class_sizes

MOST_LINES: Final = 300
MOST_ATTRIBUTES: Final = 15

PARTS: Final = "it only holds the parts that are built once, and decides nothing"
EXCEPTIONS: Final = {
    "Scripts": "one method for each script, each of which stands alone",
    "Host": "each of its acts changes the record of a server under one lock: two halves would call each other",
    "Tracker": "a state machine: all of its state is in one place, and its tables decide",
    "Server": "the facts of one model server, which reports show side by side",
    "Metering": "one attribute for each series of the director",
    "Executor": PARTS,
    "Services": PARTS,
    "Nemesis": "one method for each fault",
    "Link": "the switches of one connection, which faults throw one by one",
    "Work": "the lines of one batch, whose state five tasks share",
    "Route": "the facts of one route, which its decorator names",
    "Upload": "one multipart body is read in one pass, whose state it is",
}


def test_class_over_the_limits_has_its_reason_here() -> None:
    over = {
        each.name: (each.path, each.lines, each.attributes)
        for each in class_sizes(ROOT)
        if each.lines > MOST_LINES or (each.attributes > MOST_ATTRIBUTES and not each.is_data)
    }
    assert {name: found for name, found in over.items() if name not in EXCEPTIONS} == {}
    assert sorted(EXCEPTIONS.keys() - over.keys()) == [], "not needed any more"
