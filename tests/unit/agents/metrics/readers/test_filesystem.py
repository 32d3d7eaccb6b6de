"""Local file systems: space, inodes, and one that hangs."""

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
    FilesystemReader,
    FilesystemSettings,
    local_mounts,
    space_of,
)
from ccagent.config.duration import Duration
from ccagent.errors import NotHereError, raise_for
from ccagent.machine.node import Node
from ccagent.machine.procfs.mountinfo import parse_mountinfo, unescape_name

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
            f"{number} 1 8:{number} / {point} rw - ext4 /dev/sd{number} rw\n"
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


def values(reader: FilesystemReader, node: Node) -> dict[str, float]:
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


def test_metrics_of_the_node(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /scratch /boot /boot/efi")
    kernel.answers["/"] = answer(blocks=100, bfree=50, bavail=30, files=10, ffree=9)
    kernel.answers["/scratch"] = answer(blocks=1000, bfree=900, bavail=900, files=10, ffree=2)
    reader = FilesystemReader()
    assert values(reader, kernel) == {
        "disk_total": 1100 * 4096,
        "disk_free": 930 * 4096,
        "part_max_used": 62.5,
        "part_max_inodes_used": 80.0,
    }
    assert sorted(kernel.asked) == ["/", "/scratch"]
    assert set(values(reader, kernel)) == set(reader.metrics)
    assert reader.errors == []


def test_without_a_limit_of_inodes_there_is_no_metric_of_them(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/")
    kernel.answers["/"] = answer(blocks=10, bfree=10, bavail=10)
    assert values(FilesystemReader(), kernel) == {
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
    assert values(reader, kernel)["disk_total"] == 40960
    assert reader.errors == ["/dead: Input/output error"]
    del kernel.answers["/"]
    assert values(reader, kernel) == {}


@pytest.mark.slow
def test_one_that_hangs_is_left_out_until_it_answers(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/ /dead\\012disk")
    point = "/dead\ndisk"
    kernel.answers |= {each: answer(blocks=10, bfree=5, bavail=5) for each in ("/", point)}
    release = kernel.hanging[point] = threading.Event()
    reader = FilesystemReader(FilesystemSettings(time_limit=Duration("500ms")))
    try:
        assert values(reader, kernel)["disk_total"] == 40960
        assert reader.errors == ["/dead\\ndisk: no answer within 500ms"]
        (thread,) = left_behind()
        for _ in range(3):
            assert values(reader, kernel)["disk_total"] == 40960
            assert reader.errors == ["/dead\\ndisk: hangs; skipped until it answers"]
        assert left_behind() == [thread]
        assert kernel.asked.count(point) == 1
    finally:
        release.set()
    thread.join()
    assert values(reader, kernel)["disk_total"] == 81920
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
            assert values(reader, kernel) == {}
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
    assert values(reader, kernel)["disk_total"] == 100 * 4096
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
    assert values(reader, Node(root=str(tmp_path))) == {}
    assert reader.errors == ["/'a\\\\x00b': embedded null byte"]


def test_the_tree_of_the_node_is_asked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    Kernel(tmp_path, "/data /not/there")
    found = values(FilesystemReader(), Node(root=str(tmp_path)))
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
    assert values(FilesystemReader(), kernel)["disk_total"] == 20 * 4096
    assert len(started) == 1
