"""A machine written by a test, on which the kernel's programs are pinned: /proc and they agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ccagent.machine.bpf import pins
from ccagent.machine.bpf.pinned_file import END, HEADER
from ccagent.machine.bpf.process_records import (
    ENDED_LAYOUT,
    ENDED_MAGIC,
    ENDED_RECORD,
    KERNEL_THREAD,
    TASK_RECORD,
    TASKS_LAYOUT,
    TASKS_MAGIC,
    EndedKey,
    Task,
    Total,
)
from ccagent.machine.procfs.process_files import Io, parse_io, parse_statm
from tests.support.ended_records import Ended
from tests.support.tree import TreeNode

_TICK = 10_000_000
_FLAG_OF_KERNEL_THREADS = 0x200000
KEPT = 150_000_000_000
"""ns after which the kernel removes an entry that nothing was added to."""

_NO_TOTAL = Total(*[0] * 10)


class PinnedNode(TreeNode):
    """A process that is written is in `tasks`, too, after the next `pin`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tasks: dict[int, Task] = {}
        self.ended: dict[EndedKey, Ended] = {}
        self.total = _NO_TOTAL
        self._cgroups: dict[str, int] = {}
        self.directory.mkdir(parents=True)
        self.pin()

    @property
    def directory(self) -> Path:
        """Where the programs are pinned."""
        return self.path / pins.DIRECTORY.lstrip("/")

    def cgroup(self, text: str) -> int:
        """Return the id of a cgroup, by what /proc tells of its processes."""
        return self._cgroups.setdefault(text, 1000 + len(self._cgroups))

    def process(self, pid: int, **keys: Any) -> None:
        storage: Io = keys.pop("storage", Io(0, 0, 0))
        super().process(pid, **keys)
        command = keys.get("command", "sleep")
        name = command if isinstance(command, bytes) else command.encode()
        utime, stime = keys.get("utime", 0) * _TICK, keys.get("stime", 0) * _TICK
        uid = keys.get("uid", 1001)
        memory = parse_statm((self.path / f"proc/{pid}/statm").read_bytes())
        io = parse_io((self.path / f"proc/{pid}/io").read_bytes())
        cgroup = self.cgroup(keys.get("cgroup", "0::/user.slice\n"))
        is_kernel_thread = keys.get("flags", 0) & _FLAG_OF_KERNEL_THREADS
        self.tasks[pid] = Task(
            pid=pid,
            ppid=keys.get("ppid", 1),
            pgid=keys.get("group") or pid,
            sid=1,
            euid=uid,
            ruid=uid,
            suid=uid,
            flags=KERNEL_THREAD if is_kernel_thread else 0,
            num_threads=keys.get("threads", 1),
            namespace=0,
            namespace_level=0,
            state=ord(keys.get("state", "S")),
            start=keys.get("start", 50000) * _TICK,
            runtime=utime + stime,
            utime=utime,
            stime=stime,
            told_utime=utime,
            told_stime=stime,
            cutime=keys.get("children", 0) * _TICK,
            cstime=0,
            anon_pages=memory.private,
            data_pages=memory.data,
            rchar=io.read,
            wchar=io.written,
            read_bytes=storage.read,
            write_bytes=storage.written,
            cancelled_write_bytes=io.cancelled,
            cgroup=cgroup,
            cpuacct=cgroup,
            memory=cgroup,
            pids=cgroup,
            freezer=cgroup,
            devices=cgroup,
            name=name,
            work=b"",
        )

    def end(self, pid: int) -> None:
        super().end(pid)
        del self.tasks[pid]

    def has_ended(self, key: EndedKey, processes: int, runtime: float) -> None:
        """Have so many processes end that have used so many seconds of CPU time in all."""
        now = self._now()
        old = self.ended.get(key, Ended(0, 0, 0, 0, 0, 0, 0, 0, now, now))
        used = round(runtime * 1e9)
        self.ended[key] = old._replace(
            processes=old.processes + processes, runtime=old.runtime + used, last=now
        )
        self.count(processes)

    def count(self, processes: int) -> None:
        """Have processes end that only the total knows of."""
        self.total = self.total._replace(processes=self.total.processes + processes)

    def pin(self) -> None:
        """Write what the programs tell now."""
        tasks = b"".join(TASK_RECORD.pack(*task) for task in self.tasks.values())
        self._write(pins.TASKS, TASKS_MAGIC, TASKS_LAYOUT, tasks)
        everything = [*self.ended.items(), (EndedKey(0, 0, 0, 0, 0, 0, b""), self.total)]
        records = (ENDED_RECORD.pack(*key, *sums) for key, sums in everything)
        self._write(pins.ENDED, ENDED_MAGIC, ENDED_LAYOUT, b"".join(records))

    def _write(self, name: str, magic: bytes, layout: int, records: bytes) -> None:
        size = {pins.TASKS: TASK_RECORD.size, pins.ENDED: ENDED_RECORD.size}[name]
        header = HEADER.pack(magic, layout, size, self._now(), KEPT)
        end = HEADER.pack(END, layout, 0, self._now(), 0)
        (self.directory / name).write_bytes(header + records + end)

    def _now(self) -> int:
        return round(self.still.uptime() * 1e9)
