"""Nodes of the simulated cluster, and the placement of jobs on their cores and cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.views.demo.jobs import DemoJob

NODE_CORES = 64
CPU_MEMORY, GPU_MEMORY = 256, 512
"""Memory of a node in GB (1024^3)."""

CARD_MEMORY = 80
CARDS = ("00000000:17:00.0", "00000000:65:00.0", "00000000:CA:00.0", "00000000:E3:00.0")


class DemoNode(NamedTuple):
    """A node and the addresses of its cards."""

    name: str
    memory: int
    cards: tuple[str, ...]


class PlacedPart(NamedTuple):
    """The part of a node that is allocated to a job."""

    node: DemoNode
    cores: tuple[int, ...]
    cards: tuple[int, ...]


class PlacedJob(NamedTuple):
    """A job with number, nodes, and times in seconds since 1970. stop: None: still running."""

    number: int
    job: DemoJob
    start: int
    stop: int | None
    parts: tuple[PlacedPart, ...]


def demo_nodes(count: int = 32) -> list[DemoNode]:
    """Return the nodes. A quarter of them has GPUs."""
    with_cards = count // 4
    plain = [DemoNode(f"c{n:03}", CPU_MEMORY, ()) for n in range(1, count - with_cards + 1)]
    return plain + [DemoNode(f"g{n:03}", GPU_MEMORY, CARDS) for n in range(1, with_cards + 1)]


class _Room:
    """Free cores and cards of a node over time."""

    def __init__(self, node: DemoNode) -> None:
        self.node = node
        self.taken: list[tuple[int, int, PlacedPart, float]] = []

    def find(self, job: DemoJob, start: int, end: int) -> PlacedPart | None:
        there = [one for one in self.taken if one[0] < end and start < one[1]]
        used = {core for _, _, part, _ in there for core in part.cores}
        cards = {card for _, _, part, _ in there for card in part.cards}
        free = [core for core in range(NODE_CORES) if core not in used]
        free_cards = [card for card in range(len(self.node.cards)) if card not in cards]
        memory = sum(each for *_, each in there) + job.memory
        if len(free) < job.cores or len(free_cards) < len(job.gpu) or memory > self.node.memory:
            return None
        return PlacedPart(self.node, tuple(free[: job.cores]), tuple(free_cards[: len(job.gpu)]))


def place_jobs(
    jobs: Sequence[DemoJob], nodes: Sequence[DemoNode], now: int, first: int
) -> list[PlacedJob]:
    """Place each job on the first nodes with enough free resources, else omit the job."""
    rooms = [_Room(node) for node in nodes]
    found: list[PlacedJob] = []
    for number, job in enumerate(jobs, first):
        start = now - int(job.began * 3600)
        stop = None if job.hours is None else start + int(job.hours * 3600)
        end = now + 12 * 3600 if stop is None else stop
        parts: list[PlacedPart] = []
        for room in rooms:
            if len(parts) == job.nodes or bool(room.node.cards) != bool(job.gpu):
                continue
            part = room.find(job, start, end)
            if part is not None:
                parts.append(part)
        if len(parts) < job.nodes:
            continue
        for part in parts:
            room = next(one for one in rooms if one.node is part.node)
            room.taken.append((start, end, part, job.memory))
        found.append(PlacedJob(number, job, start, stop, tuple(parts)))
    return found
