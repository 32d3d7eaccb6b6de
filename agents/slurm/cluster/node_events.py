"""Events with the states of nodes, for ClusterCockpit's backend.

Source: the backend's REST API `nodestate`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.slurm.text import readable
from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import expand
from ccagent.records.points import Event

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from ccagent.machine.node import Node

FIELDS = "NodeList:|,StateComplete:|,CPUsState:|,AllocMem:|,GresUsed:|"
"""Output format of sinfo, one line per node and partition.

NodeList is the node name that jobs use. Several nodes may share a NodeHost.
"""

_LARGEST = 400 * 1024
"""Maximum characters of the nodes in an event: NATS rejects messages above 1 MiB."""

_GPUS = re.compile(r"gpu(?::[^,:()]+)?:(\d+)", re.ASCII)
_STATES = {
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


def running_jobs(content: bytes, counts: Counter[str]) -> None:
    """Return the number of jobs on each node. content: the node list of one job per line."""
    for line in readable(content).splitlines():
        try:
            counts.update(expand(line.strip()))
        except UnparsableError:
            continue  # a job without nodes so far


def parse_nodes(
    content: bytes, jobs: Counter[str], complain: Callable[[str], None]
) -> list[NodeState]:
    """Parse lines `c1-1|mixed|2/6/0/8|300|gpu:a100:1(IDX:0)|`, one per node and partition."""
    found: dict[str, NodeState] = {}
    for line in readable(content).splitlines():
        fields = [field.strip() for field in line.split("|")]
        try:
            host, states, cpus, memory, gres = fields[:5]
            words = [word.rstrip("*~#!%$@^-").upper() for word in states.split("+")]
            found[host] = NodeState(
                hostname=host,
                states=list(dict.fromkeys(_STATES[word] for word in words if word in _STATES))
                or ["unknown"],
                cpus_allocated=int(cpus.partition("/")[0]),
                memory_allocated=int(memory) if memory.isdecimal() else 0,
                gpus_allocated=sum(map(int, _GPUS.findall(gres))),
                jobs_running=jobs[host],
            )
        except ValueError:
            complain(f"sinfo: not a line of a node: {line[:80]!r}")
    return list(found.values())


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
        if part and size + length > _LARGEST:
            yield Event("nodestate", "slurm", tags, NodeStates(node.cluster, part), now)
            part, size = [], 0
        part.append(state)
        size += length
    if part:
        yield Event("nodestate", "slurm", tags, NodeStates(node.cluster, part), now)
