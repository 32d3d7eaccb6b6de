"""NUMA nodes and their distances."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_NODES = "sys/devices/system/node"
_NODE = re.compile(r"node(\d{1,9})", re.ASCII)


class Numa(NamedTuple):
    """nodes: number of nodes, 0 if unknown. distances: square matrix; empty if unknown."""

    nodes: int
    distances: list[list[int]]


def parse_distances(content: bytes) -> list[int]:
    """Parse node*/distance: distances to all online nodes in node order; 10 is the node itself.

    Raise UnparsableError for other content.
    """
    fields = content.split()
    if not all(field.isdigit() and len(field) <= 20 for field in fields):
        raise UnparsableError(f"not a list of distances: {content[:80]!r}")
    distances = [int(field) for field in fields]
    if max(distances, default=0) > LARGEST_UINT:
        raise UnparsableError(f"a distance is out of range: {content[:80]!r}")
    return distances


def node_numbers(names: list[str]) -> list[int]:
    """Parse the names in /sys/devices/system/node. Return the numbers of nodes, ascending.

    The numbers may have gaps. Nodes without memory or without cpus are included.
    """
    return sorted({int(match[1]) for name in names if (match := _NODE.fullmatch(name))})


def read_numa(node: Node, errors: list[CcagentError]) -> Numa:
    """Read /sys/devices/system/node. Unreadable files add an error to `errors`."""
    try:
        numbers = node_numbers(node.list(_NODES))
    except CcagentError as error:
        errors.append(error)
        return Numa(0, [])
    paths = [f"{_NODES}/node{number}/distance" for number in numbers]
    try:
        distances = [read_parsed(node, path, parse_distances) for path in paths]
    except CcagentError as error:
        errors.append(error)
        return Numa(len(numbers), [])
    if any(len(row) != len(numbers) for row in distances):
        lengths = ", ".join(str(len(row)) for row in distances)
        errors.append(
            UnparsableError(f"/{_NODES}: {len(numbers)} nodes, but lines of {lengths} distances")
        )
        return Numa(len(numbers), [])
    return Numa(len(numbers), distances)
