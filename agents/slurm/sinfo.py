"""Partitions and nodes of the cluster, from sinfo: records, events with states, and topology.

Source of the events: the REST API `nodestate` of ClusterCockpit's backend.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.agents.slurm.tres import gpu_counts
from ccagent.agents.slurm.values import readable
from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import compact, expand, split
from ccagent.records.envelopes import ClusterNodes, ClusterPartition
from ccagent.records.points import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.node import Node


PARTITIONS = "Partition:|,NodeList:|"
NODES = "NodeList:|,StateComplete:|,StateLong:|"
"""Output format of sinfo. Slurm 20.11 does not know StateComplete, complains of it and leaves it
empty. StateLong has only the first word: `down*`, not `down+not_responding`.
"""

_STATE = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_FLAGS = "*~#!%$@^-+"
"""Suffixes of a state, see sinfo(1), NODE STATE CODES. A default partition has `*`."""

STATE_FIELDS = "NodeList:|,StateComplete:|,CPUsState:|,AllocMem:|,GresUsed:|,StateLong:|"
"""Output format of sinfo, one line per node and partition.

NodeList is the node name that jobs use. Several nodes may share a NodeHost.
"""

_LARGEST_EVENT = 400 * 1024
"""Maximum characters of the nodes in an event: NATS rejects messages above 1 MiB."""

_MOST = 1 << 40
_BACKEND_STATES = {
    "ALLOCATED": "allocated",
    "COMPLETING": "allocated",
    "MIXED": "mixed",
    "IDLE": "idle",
    "RESERVED": "reserved",
    "DOWN": "down",
    "NOT_RESPONDING": "down",
    "FAIL": "down",
    "FAILING": "down",
    "POWERED_DOWN": "down",
    "DRAIN": "down",
    "DRAINED": "down",
    "DRAINING": "down",
}
"""Slurm's states and the backend's states. The backend accepts several states per node."""

Numbering = Literal["linux", "slurm"]

TOPOLOGY_FIELDS = "NodeList:|,Sockets:|,Cores:|,Threads:|"
"""Output format of sinfo, one line per node and partition."""

TOPOLOGY_FRESH = 3600.0
"""Seconds between two queries of the node topology."""


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
    """Parse lines `c1-[8-10]|down+not_responding|down*|` into groups of nodes with equal states.

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
    """Yield two fields of each line, the third for an empty second.

    Raise UnparsableError if no line has two fields.
    """
    is_any_right, odd = False, ""
    for line in readable(content).splitlines():
        first, bar, rest = line.partition("|")
        second, end, rest = rest.partition("|")
        if bar and end:
            is_any_right = True
            yield first.strip(), second.strip() or rest.partition("|")[0].strip()
        elif line.strip():
            odd = line[:80]
            complain(f"sinfo: not two fields: {odd!r}")
    if odd and not is_any_right:
        raise UnparsableError(f"sinfo: no line has two fields: {odd!r}")


class NodeState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node. memory_allocated: MB."""

    hostname: str
    states: list[str]
    cpus_allocated: int
    memory_allocated: int
    gpus_allocated: int
    jobs_running: int


class NodeStates(msgspec.Struct, frozen=True):
    """The nodes of a cluster."""

    cluster: str
    nodes: list[NodeState]


def running_jobs(content: bytes) -> Counter[str]:
    """Return the number of jobs on each node. content: the node list of one job per line."""
    counts = Counter[str]()
    for line in readable(content).splitlines():
        with suppress(UnparsableError):  # a job without nodes so far
            counts.update(expand(line.strip()))
    return counts


def parse_node_states(
    content: bytes, jobs: Counter[str], complain: Callable[[str], None]
) -> list[NodeState]:
    """Parse lines `c1-1|mixed|2/6/0/8|300|gpu:a100:1(IDX:0)|`, one per node and partition."""
    found: dict[str, NodeState] = {}
    for line in readable(content).splitlines():
        fields = [field.strip() for field in line.split("|")]
        try:
            host, states, cpus, memory, gres = fields[:5]
            states = states or fields[5]  # Slurm 20.11
            words = [word.rstrip(_FLAGS).upper() for word in states.split("+")]
            found[host] = NodeState(
                hostname=host,
                states=list(
                    dict.fromkeys(
                        _BACKEND_STATES[word] for word in words if word in _BACKEND_STATES
                    )
                )
                or ["unknown"],
                cpus_allocated=_count(cpus.partition("/")[0]),
                memory_allocated=_count(memory) if memory.isdecimal() else 0,
                gpus_allocated=sum(map(_count, gpu_counts(gres))),
                jobs_running=jobs[host],
            )
        except (ValueError, IndexError):
            complain(f"sinfo: not a line of a node: {line[:80]!r}")
    return list(found.values())


def _count(text: str) -> int:
    """Return a number. Raise ValueError for one that no node has: it would cost the whole event."""
    number = int(text)
    if not 0 <= number < _MOST:
        raise ValueError(text[:40])
    return number


def node_events(node: Node, states: list[NodeState]) -> Iterator[Event]:
    """Return the states of all nodes, in as many events as needed for their size."""
    tags = {"hostname": node.hostname, "type": "node"}
    now = node.clock.time()
    part: list[NodeState] = []
    size = 0
    for state in states:
        text = msgspec.json.encode(state)
        # Line protocol escapes quotes and backslashes: two characters each.
        length = len(text) + text.count(b'"') + text.count(b"\\") + 1
        if part and size + length > _LARGEST_EVENT:
            yield Event("nodestate", "slurm", tags, NodeStates(node.cluster, part), now)
            part, size = [], 0
        part.append(state)
        size += length
    if part:
        yield Event("nodestate", "slurm", tags, NodeStates(node.cluster, part), now)


class NodeTopology(NamedTuple):
    """Sockets of a node, cores of all sockets, and threads per core."""

    sockets: int
    cores: int
    threads: int


def parse_topology(content: bytes, complain: Callable[[str], None]) -> dict[str, NodeTopology]:
    """Parse lines `c1-1|2|32|2|`. Return topologies by node; report bad lines to `complain`."""
    found: dict[str, NodeTopology] = {}
    for line in readable(content).splitlines():
        fields = [field.strip() for field in line.split("|")]
        try:
            name, sockets, cores, threads = fields[:4]
            found[name] = NodeTopology(int(sockets), int(sockets) * int(cores), int(threads))
        except ValueError:
            complain(f"sinfo: not a line of a node: {line[:80]!r}")
    return found


def number_hwthreads(
    cpus: Iterable[int], topology: NodeTopology | None, numbering: Numbering
) -> list[int]:
    """Return the hardware threads of Slurm's `cpus`, sorted, in the chosen numbering.

    Slurm numbers CPUs by socket, core and thread: the threads of a core are neighbours. On most
    machines Linux numbers the first threads of all cores, then the second threads.
    """
    if numbering == "slurm" or topology is None or topology.threads <= 1:
        return sorted(cpus)
    _, cores, threads = topology
    return sorted(cpu // threads + cpu % threads * cores for cpu in cpus)
