"""What the process source `procfs` keeps of one process between readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.descriptors import CLOSED

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import Process
    from ccagent.agents.sonar.process_files import Stat


class Entry:
    """One process: its descriptors, what they last gave, and what follows from it.

    stat, statm, io: descriptors, or CLOSED or UNUSED; *_raw: what was read last.
    status: the parsed stat, as it was at `read_at` (monotonic seconds).
    seen, place_at: numbers of readings: the last that saw it, the next that looks at its place.
    descent: the Slurm job that its ancestors told, whatever became of them; 0 for none.
    """

    __slots__ = (
        "descent", "in_container", "io", "io_raw", "job", "name", "place_at", "process", "read_at",
        "seen", "stat", "stat_raw", "statm", "statm_raw", "status", "uid", "wanted",
    )  # fmt: skip

    def __init__(self, name: str, status: Stat, stat_raw: bytes, stat: int) -> None:
        self.name = name
        self.status = status
        self.stat_raw = stat_raw
        self.stat = stat
        self.statm = self.io = CLOSED
        self.statm_raw = self.io_raw = b""
        self.read_at = 0.0
        self.seen = 0
        self.place_at = 0
        self.uid = 0
        self.job = 0
        self.descent = 0
        self.in_container = False
        self.wanted = True
        self.process: Process | None = None
