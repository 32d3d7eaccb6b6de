"""A machine below a temporary directory, written by the test that uses it."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from ccagent.errors import NotHereError
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node

STAT = "cpu  10 0 10 0 0 0 0 0 0 0\ncpu0 1000 0 500 9 9 100 100 0 0 0\nbtime 1700000000\n"
MEMINFO = "MemTotal: 16000 kB\nMemFree: 1000 kB\nMemAvailable: 12000 kB\n"


class StillClock(Clock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.passed = 1000.0

    def time(self) -> float:
        return 1_700_000_000.0 + self.passed

    def monotonic(self) -> float:
        return self.passed

    def uptime(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


class TreeNode(Node):
    """A node whose /proc is written by the test; processes belong to the users it names."""

    def __init__(self, root: Path) -> None:
        self.still = StillClock()
        self.owners: dict[int, int] = {}
        self.names = {0: "root", 1001: "ada", 1002: "bob"}
        self.path = root
        self.hanging: dict[str, threading.Event] = {}
        super().__init__(root=str(root), hostname="c1-1", cluster="test.org", clock=self.still)
        self.clock_ticks, self.page_size = 100, 4096
        self.write("stat", STAT)
        self.write("meminfo", MEMINFO)
        self.write("loadavg", "0.50 0.25 0.00 2/345 999\n")
        self.write("diskstats", "   8  0 sda 1 2 3 4\n   7  0 loop0 0 0 0 0\n")
        self.write("sys/kernel/pid_max", "32768\n")

    def hang(self, path: str) -> threading.Event:
        """Have whoever opens a file wait until an event, which is returned, is set."""
        return self.hanging.setdefault(path, threading.Event())

    def open(self, path: str, *, waits: bool = False) -> int:
        if path in self.hanging:
            self.hanging[path].wait()
        return super().open(path, waits=waits)

    def write(self, name: str, content: str | bytes) -> None:
        path = self.path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def process(
        self,
        pid: int,
        *,
        command: str | bytes = "sleep",
        ppid: int = 1,
        group: int | None = None,
        uid: int = 1001,
        utime: int = 0,
        stime: int = 0,
        children: int = 0,
        threads: int = 1,
        start: int = 50000,
        state: str = "S",
        flags: int = 0,
        cgroup: str = "0::/user.slice\n",
        statm: str = "300 250 50 1 0 200 0\n",
        io: str | None = "rchar: 1025\nwchar: 1024\ncancelled_write_bytes: 1\n",
    ) -> None:
        """Write the files of one process."""
        name = command if isinstance(command, bytes) else command.encode()
        fields = (
            f" {state} {ppid} {pid if group is None else group} 1 0 -1 {flags} 0 0 0 0 "
            f"{utime} {stime} {children} 0 20 0 {threads} 0 {start} 1000 250" + " 0" * 28 + "\n"
        )
        self.write(f"{pid}/stat", f"{pid} (".encode() + name + b")" + fields.encode())
        self.write(f"{pid}/statm", statm)
        self.write(f"{pid}/cgroup", cgroup)
        if io is not None:
            self.write(f"{pid}/io", io)
        self.owners[pid] = uid

    def end(self, pid: int) -> None:
        """Remove a process."""
        shutil.rmtree(self.path / "proc" / str(pid))
        del self.owners[pid]

    def owner(self, path: str) -> int:
        name = path.rsplit("/", 1)[-1]
        if not name.isdecimal():
            return super().owner(path)
        pid = int(name)
        if pid not in self.owners:
            raise NotHereError(path)
        return self.owners[pid]

    def _look_up_user(self, uid: int) -> str:
        return self.names.get(uid, "")
