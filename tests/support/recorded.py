"""Recorded machines: a node that is a tree of files, with a clock that stands still."""

from __future__ import annotations

import re
import select
from pathlib import Path

import msgspec

from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from tests.support.paths import MACHINES

_PROCESS = re.compile(r"proc/([0-9]+)/?")


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What machine.json says beside the files.

    origin: how the recording was made.
    licence: its SPDX identifier.
    time: seconds since 1970; monotonic, uptime: seconds, as the clocks of the machine had them.
    clock_ticks: per second; page_size: bytes.
    users: names by user id (as JSON has it: a string), without those that have none.
    owners: effective user ids by process id (a string), one for each directory in proc.
    """

    origin: str
    licence: str
    hostname: str
    cluster: str
    time: float
    monotonic: float
    uptime: float
    clock_ticks: int
    page_size: int
    users: dict[str, str]
    owners: dict[str, int]


class RecordedClock(Clock):
    """A clock that only sleeping and waiting move, and those at once."""

    def __init__(self, *, time: float, monotonic: float, uptime: float) -> None:
        self._time = time
        self._monotonic = monotonic
        self._uptime = uptime
        self._passed = 0.0

    def time(self) -> float:
        return self._time + self._passed

    def monotonic(self) -> float:
        return self._monotonic + self._passed

    def uptime(self) -> float:
        return self._uptime + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += max(0.0, seconds)

    def wait(self, seconds: float, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(0):
            self.sleep(seconds)


class RecordedNode(Node):
    """The machine recorded in tests/machines/NAME, or below another directory.

    A test that changes files works on a copy: `shutil.copytree(MACHINES / name, tmp_path / name)`
    and `RecordedNode(name, tmp_path)`.
    """

    def __init__(self, name: str, directory: Path = MACHINES) -> None:
        root = directory / name
        self.machine = msgspec.json.decode((root / "machine.json").read_bytes(), type=Machine)
        super().__init__(
            root=str(root),
            hostname=self.machine.hostname,
            cluster=self.machine.cluster,
            clock=RecordedClock(
                time=self.machine.time,
                monotonic=self.machine.monotonic,
                uptime=self.machine.uptime,
            ),
        )
        self.clock_ticks = self.machine.clock_ticks
        self.page_size = self.machine.page_size

    def owner(self, path: str) -> int:
        """Return the recorded owner of proc/PID; a checkout has lost the owners of the files."""
        owner = super().owner(path)
        process = _PROCESS.fullmatch(path)
        return owner if process is None else self.machine.owners[process[1]]

    def _look_up_user(self, uid: int) -> str:
        return self.machine.users.get(str(uid), "")


def machine_names(directory: Path = MACHINES) -> list[str]:
    """Return the names of all recorded machines, sorted."""
    return sorted(path.parent.name for path in directory.glob("*/machine.json"))


def process_ids(node: Node) -> list[int]:
    """Return the ids of all processes of a node, sorted."""
    return sorted(int(name) for name in node.list("proc") if name.isdecimal())
