"""Conversion of Slurm's CPU numbers to CPU numbers of Linux.

Slurm numbers CPUs by socket, core and thread: the threads of a core are neighbours. On most
machines Linux numbers the first threads of all cores, then the second threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.agents.slurm.text import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Numbering = Literal["linux", "slurm"]

FIELDS = "NodeList:|,Sockets:|,Cores:|,Threads:|"
"""Output format of sinfo, one line per node and partition."""


class NodeTopology(NamedTuple):
    """Cores of a node, and threads per core."""

    cores: int
    threads: int


def parse_topology(content: bytes, complain: Callable[[str], None]) -> dict[str, NodeTopology]:
    """Parse lines `c1-1|2|32|2|`. Return topologies by node; report bad lines to `complain`."""
    found: dict[str, NodeTopology] = {}
    for line in readable(content).splitlines():
        fields = [field.strip() for field in line.split("|")]
        try:
            name, sockets, cores, threads = fields[:4]
            found[name] = NodeTopology(int(sockets) * int(cores), int(threads))
        except ValueError:
            complain(f"sinfo: not a line of a node: {line[:80]!r}")
    return found


def number_hwthreads(
    cpus: Iterable[int], topology: NodeTopology | None, numbering: Numbering
) -> list[int]:
    """Return the hardware threads of Slurm's `cpus`, sorted, in the chosen numbering."""
    if numbering == "slurm" or topology is None or topology.threads <= 1:
        return sorted(cpus)
    cores, threads = topology
    return sorted(cpu // threads + cpu % threads * cores for cpu in cpus)
