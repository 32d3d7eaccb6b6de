"""Partitions and nodes of the cluster, from sinfo."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.slurm.text import readable
from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import compact, expand, split
from ccagent.records.envelopes import ClusterNodes, ClusterPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PARTITIONS = "Partition:|,NodeList:|"
NODES = "NodeList:|,StateComplete:|"

_STATE = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_FLAGS = "*~#!%$@^-+"
"""Suffixes of a state, see sinfo(1), NODE STATE CODES. A default partition has `*`."""


def command(program: str, fields: str, *options: str) -> list[str]:
    """Return the command for `fields` of all partitions, including hidden ones."""
    return [program, "--noheader", "--all", *options, f"--Format={fields}"]


def parse_partitions(content: bytes, complain: Callable[[str], None]) -> list[ClusterPartition]:
    """Parse lines `normal*|c1-[1-2],gpu-1|`; a partition without nodes has an empty list.

    Raise UnparsableError if no line describes a partition.
    """
    nodes: dict[str, list[str]] = {}
    for name, hosts in _lines(content, complain):
        partition = name.rstrip("*")
        if not partition:
            complain(f"sinfo: a partition without a name, with nodes {hosts[:40]!r}")
            continue
        try:
            ranges = split(hosts)
        except UnparsableError as error:
            complain(f"sinfo: partition {partition[:40]}: {error}")
            ranges = []
        known = nodes.setdefault(partition, [])
        known += [one for one in ranges if one not in known]
    return [ClusterPartition(name=name, nodes=_shorten(ranges)) for name, ranges in nodes.items()]


def _shorten(ranges: list[str]) -> list[str]:
    """Return fewer ranges for the same nodes, if possible.

    slurm-monitor keeps only the last range of a partition.
    """
    if len(ranges) < 2:
        return ranges
    fewer = compact(name for each in ranges for name in expand(each))
    return fewer if len(fewer) < len(ranges) else ranges


def parse_nodes(content: bytes, complain: Callable[[str], None]) -> list[ClusterNodes]:
    """Parse lines `c1-[8-10]|down+not_responding|` into groups of nodes with equal states.

    Raise UnparsableError if no line describes nodes.
    """
    found: list[ClusterNodes] = []
    for hosts, states in _lines(content, complain):
        try:
            names = split(hosts)
        except UnparsableError as error:
            complain(f"sinfo: {error}")
            continue
        words = [word.rstrip(_FLAGS).upper() for word in states.split("+")]
        for word in words:
            if not _STATE.fullmatch(word):
                complain(f"sinfo: {hosts[:40]}: {word[:40]!r} is not a state")
        if names:
            found.append(
                ClusterNodes(
                    names=names,
                    states=list(dict.fromkeys(filter(_STATE.fullmatch, words))),
                )
            )
    return found


def _lines(content: bytes, complain: Callable[[str], None]) -> Iterable[tuple[str, str]]:
    """Yield the two fields of each line. Raise UnparsableError if no line has two fields."""
    is_any_right, odd = False, ""
    for line in readable(content).splitlines():
        first, bar, rest = line.partition("|")
        second, end, _ = rest.partition("|")
        if bar and end:
            is_any_right = True
            yield first.strip(), second.strip()
        elif line.strip():
            odd = line[:80]
            complain(f"sinfo: not two fields: {odd!r}")
    if odd and not is_any_right:
        raise UnparsableError(f"sinfo: no line has two fields: {odd!r}")
