"""Reader of page allocations by NUMA node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import node_numbers
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_NODES = "sys/devices/system/node"
_FIELDS = {
    "numa_hit": "pages allocated on this node as intended",
    "numa_miss": "pages allocated on this node although another node was preferred",
    "numa_foreign": "pages intended for this node but allocated on another",
    "interleave_hit": "interleaved pages allocated on this node as intended",
    "local_node": "pages allocated on this node by processes on its cpus",
    "other_node": "pages allocated on this node by processes on other nodes' cpus",
}
_LINE = re.compile(rb"^([a-z_]+) ([0-9]{1,20})$", re.MULTILINE)


def parse_numastat(content: bytes) -> dict[str, int]:
    """Parse node*/numastat. Return pages since boot by metric. Raise UnparsableError if invalid.

    Source: Documentation/admin-guide/numastat.rst of Linux.
    """
    numbers = {name.decode("ascii"): int(number) for name, number in _LINE.findall(content)}
    found = {f"numastats_{name}": numbers[name] for name in _FIELDS if name in numbers}
    if not found or max(found.values()) > LARGEST_UINT:
        raise UnparsableError(f"no counters of pages: {content[:80]!r}")
    return found


class NumastatReader(Reader[ReaderSettings]):
    """Page allocations of NUMA nodes; read only if a metric is wanted."""

    name = "numastat"
    metrics: ClassVar[dict[str, Metric]] = {
        f"numastats_{name}": Metric(
            unit="1/s",
            type="memoryDomain",
            description=description,
            source=f"node*/numastat, {name}",
            is_default=False,
        )
        for name, description in _FIELDS.items()
    }

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read each node*/numastat. Raise NotHereError without NUMA nodes."""
        self.errors = []
        if self.wanted is not None and self.wanted.isdisjoint(self.metrics):
            return []
        found: list[Gauge | Count] = []
        numbers = node_numbers(node.list(_NODES))
        for number in numbers:
            scope = Scope("memoryDomain", str(number))
            try:
                pages = read_parsed(node, f"{_NODES}/node{number}/numastat", parse_numastat)
            except NotHereError:
                continue
            except CcagentError as error:
                self.errors.append(str(error))
                continue
            found += (Count(metric, value, scope) for metric, value in pages.items())
        if not found and not self.errors:
            raise NotHereError(f"/{_NODES}: no NUMA node with numastat")
        return found
