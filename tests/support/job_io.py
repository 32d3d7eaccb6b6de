"""Readings of the programs for I/O, as the kernel would write them; a machine that has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ccagent.machine.bpf import pins
from ccagent.machine.bpf.io_records import (
    HOOKS,
    IO_MAGIC,
    IO_RECORD,
    LAYOUT,
    NETWORK_MAGIC,
    NETWORK_RECORD,
    IoCounts,
    IoKey,
    JobTraffic,
    NetworkKey,
)
from ccagent.machine.bpf.pinned_file import END, HEADER
from tests.support.tree import TreeNode

_LOST = 0xFFFFFFFF
NO_COUNTS = IoCounts(*[0] * 30)
NO_TRAFFIC = JobTraffic(*[0] * 5)
MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
36 21 0:40 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
37 21 0:40 /home /home rw - lustre 10.0.0.1@o2ib:/scratch rw
38 21 0:41 / /dev/shm rw - tmpfs tmpfs rw
"""


def io_reading(
    entries: Mapping[IoKey, IoCounts],
    *,
    lost: IoCounts = NO_COUNTS,
    features: int = (1 << len(HOOKS)) - 1,
    time: int = 0,
) -> bytes:
    """The bytes of a reading of `io`."""
    records = [IO_RECORD.pack(*key, *counts) for key, counts in entries.items()]
    records.append(IO_RECORD.pack(_LOST, 0, *lost))
    return _framed(IO_MAGIC, IO_RECORD.size, records, features, time)


def network_reading(
    entries: Mapping[NetworkKey, JobTraffic], *, lost: JobTraffic = NO_TRAFFIC, time: int = 0
) -> bytes:
    """The bytes of a reading of `network`."""
    records = [
        NETWORK_RECORD.pack(
            key.job, {"tcp": 1, "udp": 2}[key.protocol] | key.is_loopback << 8, *traffic
        )
        for key, traffic in entries.items()
    ]
    records.append(NETWORK_RECORD.pack(_LOST, 0, *lost))
    return _framed(NETWORK_MAGIC, NETWORK_RECORD.size, records, 0, time)


def _framed(magic: bytes, size: int, records: list[bytes], features: int, time: int) -> bytes:
    header = HEADER.pack(magic, LAYOUT, size, time, features)
    return header + b"".join(records) + HEADER.pack(END, LAYOUT, 0, time, 0)


class JobIoNode(TreeNode):
    """A machine on which the programs count; `count` adds to what a job did."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.entries: dict[IoKey, IoCounts] = {}
        self.traffic: dict[NetworkKey, JobTraffic] = {}
        self.lost = NO_COUNTS
        self.features = (1 << len(HOOKS)) - 1
        self.write("self/mountinfo", MOUNTS)
        self.directory.mkdir(parents=True)
        self.pin()

    @property
    def directory(self) -> Path:
        return self.path / pins.DIRECTORY.lstrip("/")

    def count(self, job: int, device: str, *, magic: int = 0xEF53, **values: int) -> None:
        """Add to the counters of a job on a device `major:minor`."""
        major, minor = map(int, device.split(":"))
        key = IoKey(job, major << 20 | minor)
        old = self.entries.get(key) or NO_COUNTS._replace(since=self._now(), magic=magic)
        added = {name: getattr(old, name) + value for name, value in values.items()}
        self.entries[key] = old._replace(**added)
        self.pin()

    def transfer(
        self,
        job: int,
        protocol: str,
        *,
        is_loopback: bool = False,
        sent: int = 0,
        received: int = 0,
    ) -> None:
        """Add to the traffic of a job."""
        key = NetworkKey(job, protocol, is_loopback)
        old = self.traffic.get(key) or NO_TRAFFIC._replace(since=self._now())
        self.traffic[key] = old._replace(
            sends=old.sends + 1,
            sent_bytes=old.sent_bytes + sent,
            receives=old.receives + 1,
            received_bytes=old.received_bytes + received,
        )
        self.pin()

    def start_job(self, job: int, cpus: str = "0-1", pids: tuple[int, ...] = ()) -> None:
        """Make the control group of a job, of version 2."""
        path = self.path / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}"
        (path / "step_0").mkdir(parents=True)
        (path / "cpuset.cpus").write_text(f"{cpus}\n")
        (path / "cgroup.procs").write_text("")
        (path / "step_0/cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def end_job(self, job: int) -> None:
        path = self.path / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}"
        for file in ("cpuset.cpus", "cgroup.procs", "step_0/cgroup.procs"):
            (path / file).unlink()
        (path / "step_0").rmdir()
        path.rmdir()

    def pass_time(self, seconds: float) -> None:
        self.still.passed += seconds
        self.pin()

    def pin(self) -> None:
        """Write what the programs tell now."""
        io = io_reading(self.entries, lost=self.lost, features=self.features, time=self._now())
        (self.directory / pins.IO).write_bytes(io)
        network = network_reading(self.traffic, time=self._now())
        (self.directory / pins.NETWORK).write_bytes(network)

    def _now(self) -> int:
        return round(self.still.uptime() * 1e9)
