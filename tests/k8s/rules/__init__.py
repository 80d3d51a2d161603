"""Rules that hold for every overlay: each rule looks at all of its objects and names what is wrong.

Looks at manifests and at the code that they start: its settings, its command line, its times. Asks no cluster.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tests.k8s.rules.lives import (
    drains_its_gpus,
    ends_in_time,
    is_probed,
    keeps_servers_that_it_starts,
    leaves_proxies_time,
    lets_nodes_be_emptied,
    restarts_what_hangs,
    survives_a_node,
)
from tests.k8s.rules.promises import (
    is_walled,
    keeps_inside_what_is_for_directors,
    keeps_what_was_accepted,
    lets_streams_last,
    scales_by_what_is_counted,
)
from tests.k8s.rules.references import (
    asks_services_that_there_are,
    is_rolled_only_by_what_it_reads,
    names_ports_that_there_are,
    refers_to_what_there_is,
    selects_a_pod,
)
from tests.k8s.rules.rights import asks_for_what_it_takes, names_its_images, runs_without_rights, trusts_no_model
from tests.k8s.rules.settings import is_given_what_it_reads
from tests.support.manifests import Manifest

Rule = Callable[[list[Manifest]], Iterator[str]]

RULES: Final[tuple[Rule, ...]] = (
    runs_without_rights,
    asks_for_what_it_takes,
    names_its_images,
    is_probed,
    restarts_what_hangs,
    lets_nodes_be_emptied,
    survives_a_node,
    ends_in_time,
    leaves_proxies_time,
    drains_its_gpus,
    keeps_servers_that_it_starts,
    is_given_what_it_reads,
    trusts_no_model,
    refers_to_what_there_is,
    is_rolled_only_by_what_it_reads,
    names_ports_that_there_are,
    asks_services_that_there_are,
    lets_streams_last,
    keeps_inside_what_is_for_directors,
    selects_a_pod,
    keeps_what_was_accepted,
    scales_by_what_is_counted,
    is_walled,
)


def complaints(objects: list[Manifest]) -> list[str]:
    """All that is wrong; nothing, of what may be applied."""
    return [f"{rule.__name__}: {each}" for rule in RULES for each in rule(objects)]
