"""Space by mount point; a file system that hangs costs its own values."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError
from ccagent.exporter.node_exporter import devices
from ccagent.exporter.node_exporter.devices import FilesystemCollector
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode

MOUNTS = (
    "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /hung rw - nfs server:/x rw\n"
    "3 1 8:3 / /home rw - xfs /dev/sdb ro\n4 1 0:1 / /proc rw - proc proc rw\n"
    "5 1 0:2 / /with\\040space rw - ext4 /dev/sdc rw,emergency_ro\n"
    "6 1 0:3 / /gone rw - tmpfs tmpfs rw\n"
)


class HangingNode(TreeNode):
    """A node on which /hung hangs until the test ends, and /gone is gone."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.released = threading.Event()
        self.asked: list[str] = []

    def space(self, path: str) -> os.statvfs_result:
        self.asked.append(path)
        if path.startswith("hung"):
            self.released.wait(30)
        if path == "gone":
            raise NotHereError("gone") from FileNotFoundError(errno.ENOENT, "")
        return os.statvfs("/")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[HangingNode]:
    monkeypatch.setattr(devices, "_PATIENCE", 0.05)
    made = HangingNode(tmp_path)
    made.write("1/mountinfo", MOUNTS)
    yield made
    made.released.set()


def errors(found: dict[str, float]) -> dict[str, float]:
    prefix = "node_filesystem_device_error"
    return {
        name.partition('mountpoint="')[2].partition('"')[0]: value
        for name, value in found.items()
        if name.startswith(prefix)
    }


def test_one_that_hangs_costs_itself_and_is_left_alone(node: HangingNode) -> None:
    collector = make(FilesystemCollector)
    for _ in range(3):
        found = collected(collector, node)
        assert errors(found) == {"/": 0, "/hung": 1, "/home": 0, "/with space": 0, "/gone": 1}
        size = 'node_filesystem_size_bytes{device="/dev/sdb",fstype="xfs",mountpoint="/home"}'
        assert found[size] > 0
        assert not any("/hung" in name and "size" in name for name in found)
    assert node.asked.count("hung") == 1


def test_an_error_has_its_reason(node: HangingNode) -> None:
    found = collected(make(FilesystemCollector), node)
    assert {"mountpoint timeout", "no such file or directory"} == {
        name.partition('device_error="')[2].partition('"')[0]
        for name, value in found.items()
        if name.startswith("node_filesystem_device_error") and value
    }


def test_a_file_system_that_ext4_has_stopped_is_read_only(node: HangingNode) -> None:
    node.released.set()
    found = collected(make(FilesystemCollector), node)
    labels = 'device="/dev/sdc",fstype="ext4",mountpoint="/with space"'
    assert found[f"node_filesystem_readonly{{{labels}}}"] == 1
    labels = 'device="/dev/sda1",major="8",minor="1",mountpoint="/"'
    assert found[f"node_filesystem_mount_info{{{labels}}}"] == 1


def test_readers_of_one_scrape_ask_once(node: HangingNode) -> None:
    node.released.set()
    scrape = node.snapshot()
    first, second = (collected(make(FilesystemCollector), scrape) for _ in range(2))
    assert first == second
    assert node.asked.count("home") == 1


def test_many_that_hang_cost_no_other(node: HangingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_MOST_HANGING", 3)
    dead = "".join(f"{n} 1 0:{n} / /hung{n} rw - nfs server:/{n} rw\n" for n in range(10, 20))
    node.write("1/mountinfo", dead + MOUNTS)
    collector = make(FilesystemCollector)
    for _ in range(3):
        found = errors(collected(collector, node))
        assert (found["/"], found["/home"]) == (0, 0)
    assert sum(path.startswith("hung") for path in node.asked) == 3


def test_mounts_that_users_make_are_limited(
    node: HangingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_MOST_MOUNTS", 5)
    mine = "".join(f"{n} 1 0:{n} / /u{n} rw - fuse.x x rw\n" for n in range(10, 30))
    node.write("1/mountinfo", mine + MOUNTS)
    assert len(errors(collected(make(FilesystemCollector), node))) == 5


def test_keys_leave_out_mounts_and_types(node: HangingNode) -> None:
    node.released.set()
    settings = {"filesystem_exclude": "^/(hung|gone)", "filesystem_types_exclude": "^(xfs|proc)$"}
    from ccagent.exporter.settings import NodeExporterSettings

    found = collected(
        make(FilesystemCollector, node_exporter=NodeExporterSettings(**settings)), node
    )
    assert errors(found).keys() == {"/", "/with space"}
