"""Cards of a reading, with their jobs and idle times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.top.snapshot import TopCard

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import Process
    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node


class CardWatch:
    """The start of the idle time of each card."""

    def __init__(self) -> None:
        self._idle_since: dict[int, float] = {}

    def watch(
        self,
        reading: GpuReading,
        owners: dict[int, int],
        now: float,
        node: Node,
        processes: list[Process],
    ) -> tuple[TopCard, ...]:
        """Return the cards of a reading. owners: jobs by card, from Slurm's allocations."""
        by_pid = {process.pid: process for process in processes} if reading.cards else {}
        used: dict[int, Process] = {}
        for pid, uses in reading.processes.items():
            process = by_pid.get(pid)
            for use in uses:
                if process is not None:
                    used.setdefault(use.index, process)
        idle = self._idle_since
        self._idle_since = {}
        found: list[TopCard] = []
        for card in reading.cards:
            index = card.index
            if index in reading.partitioned:
                continue
            is_unknown = index in reading.without_utilization or card.failing > 0
            if not card.ce_util and not is_unknown:
                self._idle_since[index] = idle.get(index, now)
            process = used.get(index)
            found.append(
                TopCard(
                    index=index,
                    utilization=None if is_unknown else float(card.ce_util),
                    memory=1024 * card.memory,
                    memory_percent=None
                    if index in reading.without_memory
                    else float(card.memory_util),
                    power=card.power,
                    power_limit=card.power_limit,
                    temperature=card.temperature,
                    is_failing=card.failing > 0,
                    job=owners.get(index, process.job if process is not None else 0),
                    user=node.user(process.uid) if process is not None else "",
                    idle=now - self._idle_since.get(index, now),
                )
            )
        return tuple(found)
