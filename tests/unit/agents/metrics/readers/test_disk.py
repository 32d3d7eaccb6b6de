"""Disks: which count, what they transfer, how busy they are; local file systems on them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.disk import (
    LOCAL,
    DiskReader,
    DiskSettings,
    FilesystemReader,
    FilesystemSettings,
    choose_disks,
    local_mounts,
    space_of,
)
from ccagent.config.duration import Duration
from ccagent.errors import NotHereError, UnparsableError, raise_for
from ccagent.machine.node import Node
from ccagent.machine.procfs.mountinfo import parse_mountinfo, unescape_name
from tests.support.tree import StillClock

# As Linux 6.18 writes it.
MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684096k
27 1 254:0 / / rw,relatime shared:1 master:7 - ext4 /dev/vda1 rw,discard
28 27 254:1 / /boot rw,relatime - ext4 /dev/vda2 rw
29 27 254:2 / /scratch\\040of\\011all rw - xfs /dev/mapper/a\\134b rw
30 27 254:0 /home /home rw - ext4 /dev/vda1 rw
31 27 0:51 / /data rw - nfs4 server:/data rw,vers=4.2
32 27 7:0 / /snap/core/1 ro - squashfs /dev/loop0 ro
33 27 0:52 / /none rw - tmpfs  rw
"""


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


def answer(
    *, blocks: int = 0, bfree: int = 0, bavail: int = 0, files: int = 0, ffree: int = 0
) -> os.statvfs_result:
    """What statvfs gives of a file system in blocks of 4 KiB, as large as it likes to write."""
    return os.statvfs_result((65536, 4096, blocks, bfree, bavail, files, ffree, ffree, 0, 255))


class Kernel(Node):
    """Answers by path; those in `hanging` when they are let go, those without a number fail."""

    def __init__(self, root: Path, mounts: str) -> None:
        super().__init__(root=str(root), hostname="n1", cluster="c1")
        self.answers: dict[str, os.statvfs_result | int] = {}
        self.hanging: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.mounts(mounts)

    def mounts(self, *names: str) -> None:
        path = Path(self.root, "proc/self/mountinfo")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{number + 2} 1 8:{number} / {point} rw - ext4 /dev/sd{number} rw\n"
            for number, point in enumerate(" ".join(names).split())
        ]
        path.write_text("".join(lines))

    def space(self, path: str) -> os.statvfs_result:
        point = f"/{path}"
        self.asked.append(point)
        if point in self.hanging:
            self.hanging[point].wait()
        found = self.answers.get(point, errno.ENOENT)
        if isinstance(found, int):
            raise_for(path, OSError(found, ""))
        return found


def space_values(reader: FilesystemReader, node: Node) -> dict[str, float]:
    return {each.metric: each.value for each in reader.read(node)}


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "statvfs"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_names_come_back_as_the_kernel_was_given_them(name: str) -> None:
    written = "".join(f"\\{ord(each):03o}" if each in " \t\n\\#" else each for each in name)
    assert unescape_name(written) == name


def test_each_local_file_system_counts_once() -> None:
    points = [mount.point for mount in local_mounts(parse_mountinfo(MOUNTINFO), LOCAL, ())]
    assert points == ["/", "/boot", "/scratch of\tall"]


def test_types_and_mount_points_are_chosen() -> None:
    mounts = parse_mountinfo(MOUNTINFO)
    points = [mount.point for mount in local_mounts(mounts, {"tmpfs", "ext4"}, ("/boot", "/dev/*"))]
    assert points == ["/", "/none"]


def test_what_is_mounted_over_is_not_asked() -> None:
    text = b"1 0 8:1 / /d rw - xfs /dev/sda1 rw\n2 1 0:9 / /d rw - nfs server:/d rw\n"
    assert local_mounts(parse_mountinfo(text), LOCAL, ()) == []


def test_a_file_system_below_a_later_mount_is_not_asked(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /data/cache /data")
    FilesystemReader().read(kernel)
    assert sorted(kernel.asked) == ["/", "/data"]


def test_a_pool_of_zfs_counts_once() -> None:
    text = b"".join(
        b"%d 1 0:%d / /%d rw - zfs %s rw\n" % (number, number, number, source)
        for number, source in enumerate([b"tank", b"tank/home", b"rust/a", b"rust/b"])
    )
    points = [mount.point for mount in local_mounts(parse_mountinfo(text), LOCAL, ())]
    assert points == ["/0", "/2"]


def test_space_is_in_blocks_of_frsize() -> None:
    space = space_of(answer(blocks=100, bfree=40, bavail=30, files=50, ffree=10))
    assert space == (409600, 122880, 245760, 50, 40)


def test_file_systems_of_the_node(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /scratch /boot /boot/efi")
    kernel.answers["/"] = answer(blocks=100, bfree=50, bavail=30, files=10, ffree=9)
    kernel.answers["/scratch"] = answer(blocks=1000, bfree=900, bavail=900, files=10, ffree=2)
    reader = FilesystemReader()
    assert space_values(reader, kernel) == {
        "disk_total": 1100 * 4096,
        "disk_free": 930 * 4096,
        "part_max_used": 62.5,
        "part_max_inodes_used": 80.0,
    }
    assert sorted(kernel.asked) == ["/", "/scratch"]
    assert set(space_values(reader, kernel)) == set(reader.metrics)
    assert reader.errors == []


def test_without_a_limit_of_inodes_there_is_no_metric_of_them(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/")
    kernel.answers["/"] = answer(blocks=10, bfree=10, bavail=10)
    assert space_values(FilesystemReader(), kernel) == {
        "disk_total": 40960, "disk_free": 40960, "part_max_used": 0,
    }  # fmt: skip


def test_a_file_system_that_fails_costs_itself(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /dead /unmounted /empty")
    kernel.answers |= {
        "/": answer(blocks=10, bfree=5, bavail=5),
        "/dead": errno.EIO,
        "/empty": answer(),
    }
    reader = FilesystemReader()
    assert space_values(reader, kernel)["disk_total"] == 40960
    assert reader.errors == ["/dead: Input/output error"]
    del kernel.answers["/"]
    assert space_values(reader, kernel) == {}


@pytest.mark.slow
def test_one_that_hangs_is_left_out_until_it_answers(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /dead\\012disk")
    point = "/dead\ndisk"
    kernel.answers |= {each: answer(blocks=10, bfree=5, bavail=5) for each in ("/", point)}
    release = kernel.hanging[point] = threading.Event()
    reader = FilesystemReader(FilesystemSettings(time_limit=Duration("500ms")))
    try:
        assert space_values(reader, kernel)["disk_total"] == 40960
        assert reader.errors == ["/dead\\ndisk: no answer within 500ms"]
        (thread,) = left_behind()
        for _ in range(3):
            assert space_values(reader, kernel)["disk_total"] == 40960
            assert reader.errors == ["/dead\\ndisk: hangs; skipped until it answers"]
        assert left_behind() == [thread]
        assert kernel.asked.count(point) == 1
    finally:
        release.set()
    thread.join()
    assert space_values(reader, kernel)["disk_total"] == 81920
    assert reader.errors == []


def test_threads_that_hang_are_bounded(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/")
    release = threading.Event()
    reader = FilesystemReader(FilesystemSettings(time_limit=Duration("10ms")))
    try:
        for day in range(3):
            points = [f"/{day}/{number}" for number in range(20)]
            kernel.hanging |= dict.fromkeys(points, release)
            kernel.mounts(*points)
            assert space_values(reader, kernel) == {}
        assert len(left_behind()) == 32
        assert reader.errors == ["20 more are skipped, since 32 hang"]
    finally:
        release.set()
        for thread in left_behind():
            thread.join()


def test_there_may_be_many_file_systems(tmp_path: Path) -> None:
    points = [f"/{number}" for number in range(100)]
    kernel = Kernel(tmp_path, " ".join(points))
    kernel.answers |= dict.fromkeys(points, answer(blocks=1, bfree=1, bavail=1))
    reader = FilesystemReader()
    assert space_values(reader, kernel)["disk_total"] == 100 * 4096
    assert reader.errors == []


def test_without_local_file_systems_there_is_nothing(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "")
    with pytest.raises(NotHereError, match="no local file system"):
        FilesystemReader().read(kernel)
    (tmp_path / "proc/self/mountinfo").unlink()
    with pytest.raises(NotHereError, match="/proc/self/mountinfo: No such file"):
        FilesystemReader().read(kernel)


def test_a_path_that_no_kernel_has_is_left_out(tmp_path: Path) -> None:
    Kernel(tmp_path, "/a\\000b")
    reader = FilesystemReader()
    assert space_values(reader, Node(root=str(tmp_path))) == {}
    assert reader.errors == ["/'a\\\\x00b': embedded null byte"]


def test_the_tree_of_the_node_is_asked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    Kernel(tmp_path, "/data /not/there")
    found = space_values(FilesystemReader(), Node(root=str(tmp_path)))
    assert found["disk_total"] == psutil.disk_usage(str(tmp_path / "data")).total


def test_file_systems_of_this_machine_are_those_of_psutil() -> None:
    mounts = local_mounts(parse_mountinfo(Path("/proc/self/mountinfo").read_bytes()), LOCAL, ())
    if not mounts:
        pytest.skip("no local file system here")
    total = sum(psutil.disk_usage(mount.point).total for mount in mounts)
    reader = FilesystemReader(FilesystemSettings(exclude=()))
    found = {each.metric: each.value for each in reader.read(Node())}
    assert found["disk_total"] == total
    assert 0 <= found["disk_free"] <= total
    assert 0 <= found["part_max_used"] <= 100
    assert reader.errors == []


def test_file_systems_that_answer_cost_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [f"/{number}" for number in range(20)]
    kernel = Kernel(tmp_path, " ".join(points))
    kernel.answers |= dict.fromkeys(points, answer(blocks=1, bfree=1, bavail=1))
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def count(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", count)
    assert space_values(FilesystemReader(), kernel)["disk_total"] == 20 * 4096
    assert len(started) == 1
