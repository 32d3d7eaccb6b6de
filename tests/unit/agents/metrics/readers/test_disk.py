"""Disks: which count, what they transfer, how busy they are."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ccagent.agents.metrics.readers.disk import DiskReader, DiskSettings, choose_disks
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.node import Node
from tests.support.tree import StillClock


class Machine:
    """A tree with /proc/diskstats and /sys/block."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = StillClock()
        self.node = Node(root=str(root), hostname="n1", cluster="c1", clock=self.clock)
        (root / "proc").mkdir()

    def disk(self, name: str, *files: str) -> None:
        for file in (*files, "queue", "stat"):
            (self.root / "sys/block" / name / file).mkdir(parents=True, exist_ok=True)

    def counts(self, **lines: tuple[int, int, int, int, int]) -> None:
        """Write reads, sectors read, writes, sectors written, busy ms; all else is one more."""
        text = ""
        for name, (reads, sectors_read, writes, sectors_written, busy) in lines.items():
            numbers = (
                reads, reads + 1, sectors_read, reads + 1,
                writes, writes + 1, sectors_written, writes + 1, 0, busy, busy + 1,
                0, 0, 0, 0, 0, 0,
            )  # fmt: skip
            text += f"   8       0 {name} {' '.join(map(str, numbers))}\n"
        self.text(text)

    def text(self, text: str) -> None:
        (self.root / "proc/diskstats").write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(reader: DiskReader, machine: Machine) -> dict[str, float]:
    return {each.metric: each.value for each in reader.read(machine.node)}


NONE: set[str] = set()
DISK = {"device"}


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        ({"sda": DISK, "vda": DISK, "nvme0n1": DISK, "mmcblk0": DISK, "xvda": DISK}, None),
        ({"dm-0": NONE, "md127": NONE, "loop0": NONE, "ram0": NONE, "zram0": NONE}, NONE),
        ({"sda": DISK, "sr0": DISK, "fd0": DISK}, {"sda"}),
        # Native multipath: the namespace counts, and where it doesn't (before 6.1) its paths do.
        ({"nvme0n1": DISK, "nvme0c0n1": DISK, "nvme0c1n1": DISK}, {"nvme0n1"}),
        ({"nvme0c0n1": DISK, "nvme0c1n1": DISK, "nvme1n1": DISK}, None),
    ],
)
def test_no_transfer_counts_twice(disks: dict[str, set[str]], expected: set[str] | None) -> None:
    assert choose_disks(disks) == (set(disks) if expected is None else expected)


def test_disks_are_included_and_excluded() -> None:
    disks = {"sda": DISK, "sdb": DISK, "md0": NONE, "dm-0": NONE, "sr0": DISK}
    assert choose_disks(disks, ["md*", "sr0"], ["sdb"]) == {"sda", "md0", "sr0"}


def test_metrics_of_the_node(machine: Machine) -> None:
    machine.disk("sda", "device")
    machine.disk("nvme0n1", "device")
    machine.disk("md0")
    reader = DiskReader()
    big = (10**6, 10**6, 10**6, 10**6, 10**6)
    machine.counts(sda=(1, 10, 100, 1000, 10000), sda1=big, nvme0n1=(0, 0, 0, 0, 50000), md0=big)
    assert values(reader, machine) == {
        "disk_read": 0, "disk_write": 0, "disk_reads": 0, "disk_writes": 0,
    }  # fmt: skip
    machine.clock.passed += 10
    more = (10**7, 10**7, 10**7, 10**7, 10**7)
    machine.counts(
        sda=(3, 14, 106, 1008, 12500), sda1=more, nvme0n1=(10, 20, 30, 40, 55000), md0=more
    )
    assert values(reader, machine) == {
        "disk_read": 24 * 512,
        "disk_write": 48 * 512,
        "disk_reads": 12,
        "disk_writes": 36,
        "disk_busy": 50.0,
    }
    machine.clock.passed += 10
    assert values(reader, machine)["disk_busy"] == 0
    assert set(values(reader, machine)) <= set(reader.metrics)
    assert reader.errors == []


def test_busy_is_at_most_100_percent_and_survives_its_wrap(machine: Machine) -> None:
    machine.disk("sda", "device")
    reader = DiskReader()
    found: list[float | None] = []
    for busy in (0xFFFF_FFF0, 500, 90_000, 10):
        machine.counts(sda=(1, 1, 1, 1, busy))
        found.append(values(reader, machine).get("disk_busy"))
        machine.clock.passed += 1
    assert found == [None, 50.0, 100.0, 1.0]


def test_there_is_no_busy_without_time(machine: Machine) -> None:
    machine.disk("sda", "device")
    machine.counts(sda=(1, 1, 1, 1, 1))
    reader = DiskReader()
    values(reader, machine)
    assert "disk_busy" not in values(reader, machine)


def test_a_disk_that_comes_brings_no_past(machine: Machine) -> None:
    machine.disk("sda", "device")
    machine.disk("sdb", "device")
    reader = DiskReader()
    machine.counts(sda=(1, 1, 1, 1, 1), sdb=(0, 0, 0, 0, -1))
    with pytest.raises(UnparsableError, match="/proc/diskstats: "):
        reader.read(machine.node)
    machine.counts(sda=(1, 1, 1, 1, 1))
    values(reader, machine)
    machine.clock.passed += 1
    machine.counts(sda=(2, 1, 1, 1, 1), sdb=(5000, 5000, 5000, 5000, 5000))
    found = values(reader, machine)
    assert (found["disk_reads"], found["disk_busy"]) == (1, 0)
    machine.clock.passed += 1
    machine.counts(sdb=(5003, 5000, 5000, 5000, 5010))
    found = values(reader, machine)
    assert (found["disk_reads"], found["disk_busy"]) == (4, 1.0)


def test_names_with_a_slash(machine: Machine) -> None:
    machine.disk("cciss!c0d0", "device")
    reader = DiskReader()
    machine.counts(**{"cciss/c0d0": (1, 1, 1, 1, 1)})
    values(reader, machine)
    machine.counts(**{"cciss/c0d0": (2, 2, 2, 2, 2)})
    assert values(reader, machine)["disk_read"] == 512


def test_a_disk_without_enough_values_costs_itself(machine: Machine) -> None:
    machine.disk("sda", "device")
    machine.disk("sdb", "device")
    machine.text("8 0 sda 1 2 3 4\n8 16 sdb 1 2 3 4 5 6 7 8 9 10 11\n")
    reader = DiskReader()
    assert values(reader, machine)["disk_read"] == 0
    assert reader.errors == ["/proc/diskstats: 'sda': only 4 values"]
    machine.text("8 0 sda 1 2 3 4\n")
    assert values(reader, machine) == {}


def test_a_disk_that_cannot_be_listed_costs_itself(machine: Machine) -> None:
    machine.disk("sda", "device")
    (machine.root / "sys/block/sdb").symlink_to("sdb")
    machine.counts(sda=(1, 1, 1, 1, 1), sdb=(1, 1, 1, 1, 1))
    reader = DiskReader()
    assert values(reader, machine)["disk_read"] == 0
    assert reader.errors == ["/sys/block/sdb: Too many levels of symbolic links"]


def test_without_disks_there_is_nothing(machine: Machine) -> None:
    with pytest.raises(NotHereError, match="/proc/diskstats: No such file"):
        DiskReader().read(machine.node)
    machine.disk("zram0")
    machine.counts(zram0=(1, 1, 1, 1, 1))
    with pytest.raises(NotHereError, match=r"no disk among \['zram0'\]"):
        DiskReader().read(machine.node)
    assert values(DiskReader(DiskSettings(include=("zram*",))), machine)["disk_reads"] == 0


def test_disks_of_this_machine_are_those_of_psutil() -> None:
    try:
        reader, node = DiskReader(), Node()
        reader.read(node)
    except NotHereError:
        pytest.skip("no disk here")
    before = psutil.disk_io_counters(perdisk=True, nowrap=False)
    begin = {each.metric: each.value for each in reader.read(node)}
    end = {each.metric: each.value for each in reader.read(node)}
    after = psutil.disk_io_counters(perdisk=True, nowrap=False)
    disks = [name for name in before if (Path("/sys/block") / name / "device").exists()]
    assert disks

    def most(field: str) -> int:
        return sum(getattr(after[name], field) - getattr(before[name], field) for name in disks)

    assert 0 <= end["disk_read"] - begin["disk_read"] <= most("read_bytes")
    assert 0 <= end["disk_write"] - begin["disk_write"] <= most("write_bytes")
    assert 0 <= end["disk_reads"] - begin["disk_reads"] <= most("read_count")
    assert 0 <= end["disk_writes"] - begin["disk_writes"] <= most("write_count")
