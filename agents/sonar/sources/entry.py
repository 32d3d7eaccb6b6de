"""State that the process sources keep of each process between readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import Process
    from ccagent.machine.procfs.process_files import ProcessStat


class ProcessEntry:
    """One process, and what follows from its files.

    status: /proc/PID/stat, as it was at `read_at` (monotonic seconds).
    attribute_at: number of the next reading that looks up job and container.
    descent: the Slurm job that its ancestors named, even if they have ended since; 0 for none.
    """

    __slots__ = (
        "attribute_at", "descent", "in_container", "job", "name", "process", "read_at", "status",
        "uid", "wanted",
    )  # fmt: skip

    def __init__(self, name: str, status: ProcessStat) -> None:
        self.name = name
        self.status = status
        self.read_at = 0.0
        self.attribute_at = 0
        self.uid = 0
        self.job = 0
        self.descent = 0
        self.in_container = False
        self.wanted = True
        self.process: Process | None = None
