"""Mounts of jobs in `ccagent top`, as the kernel's programs count them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotPermittedError
from ccagent.views.top.reader import NOT_LOADED, NOT_PERMITTED, MountWatch, NodeReader
from ccagent.views.top.screen import draw
from ccagent.views.top.snapshot import TopSnapshot
from ccagent.views.top.state import ViewState
from tests.support.job_io import NO_COUNTS, JobIoNode
from tests.support.tree import TreeNode


@pytest.fixture
def node(tmp_path: Path) -> JobIoNode:
    node = JobIoNode(tmp_path)
    node.start_job(7)
    node.count(7, "0:40", reads=1, read_bytes=1 << 30)
    return node


@pytest.fixture
def reader(node: JobIoNode) -> Iterator[NodeReader]:
    reader = NodeReader(node)
    reader.begin()
    node.pass_time(10)
    yield reader
    reader.close()


def screen(found: TopSnapshot, state: ViewState, width: int = 100) -> list[str]:
    return [line.text.rstrip() for line in draw(found, state, width, 12).lines]


def test_rates_are_since_the_previous_reading(node: JobIoNode, reader: NodeReader) -> None:
    node.count(7, "0:40", reads=20, read_bytes=50 << 20, opens=4, stats=6, async_writes=5)
    node.count(7, "8:1", splice_writes=10, splice_write_bytes=10 << 20)
    node.count(0, "8:1", writes=1, write_bytes=10)
    lines = screen(reader.read(), ViewState(view="mounts"))
    assert lines[0].endswith("by I/O")
    assert lines[1:5] == [
        "JOB      MOUNT    TYPE    READ WRITE  READS WRITES METADATA SOURCE",
        "7        /home    lustre    5M     0      2     <1        1 10.0.0.1@o2ib:/scratch",
        "7        /        ext4       0    1M      0      1        0 /dev/sda1",
        "(system) /        ext4       0     1      0     <1        0 /dev/sda1",
    ]


def test_an_opened_job_shows_its_busiest_mounts(node: JobIoNode, reader: NodeReader) -> None:
    node.count(7, "0:40", reads=20, read_bytes=50 << 20, unlinks=900)
    node.count(8, "8:1", reads=20, read_bytes=50 << 20)
    found = reader.read()
    lines = screen(found, ViewState(view="processes", job=7))
    assert lines[3] == (
        "/home lustre: 5MB/s read, 0B/s written; 2 reads, 0 writes, 90 metadata a second"
    )
    assert lines[4].startswith("hwthreads")
    assert [line[:1] for line in screen(found, ViewState(view="mounts", job=7))[2:4]] == ["7", ""]


def test_an_idle_mount_stays_as_long_as_its_job(node: JobIoNode, reader: NodeReader) -> None:
    assert [(one.job, one.operations) for one in reader.read().mounts] == [(7, 0.0)]
    node.end_job(7)
    node.pass_time(10)
    assert reader.read().mounts == ()


def test_sorting_by_operations_finds_the_metadata_storm(
    node: JobIoNode, reader: NodeReader
) -> None:
    node.count(7, "0:40", opens=90_000)
    node.count(7, "8:1", reads=1, read_bytes=1 << 30)
    found = reader.read()
    for sort, mount in (("I/O", "/"), ("OPS", "/home")):
        state = ViewState(view="mounts", sorts=(("mounts", sort),))
        assert screen(found, state)[2].split()[1] == mount


def test_a_kernel_without_the_programs_is_named(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    assert MountWatch().read(node, {7}) == ((), NOT_LOADED)
    found = TopSnapshot(node="n", cluster="c", time=0, uptime=0, mounts_note=NOT_LOADED)
    assert screen(found, ViewState(view="mounts"))[2] == NOT_LOADED


def test_other_reasons_are_named(node: JobIoNode, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.directory / "io").write_bytes(b"from another version")
    assert MountWatch().read(node, {7})[1].startswith("I/O by mount: ")

    def refuse(*_: object) -> bytes:
        raise NotPermittedError("denied")

    monkeypatch.setattr(node, "read", refuse)
    assert MountWatch().read(node, {7}) == ((), NOT_PERMITTED)


def test_lost_calls_and_hostile_names(node: JobIoNode) -> None:
    node.write("self/mountinfo", "36 1 0:40 / /\\033[2J\\012x rw - fuse.\\033 \\033 rw\n")
    watch = MountWatch()
    watch.read(node, {7})
    node.lost = NO_COUNTS._replace(reads=5)
    node.pass_time(10)
    mounts, note = watch.read(node, {7})
    assert note == "5 calls are not counted"
    found = TopSnapshot(node="n", cluster="c", time=0, uptime=0, mounts=mounts, mounts_note=note)
    assert screen(found, ViewState(view="mounts"))[-1] == "5 calls are not counted  ?help q quit"
    assert all(line.isprintable() for line in screen(found, ViewState(view="mounts")))


def test_programs_that_are_loaded_later_are_found(tmp_path: Path) -> None:
    node = JobIoNode(tmp_path)
    os.rename(node.directory, tmp_path / "away")
    watch = MountWatch()
    assert watch.read(node, ()) == ((), NOT_LOADED)
    os.rename(tmp_path / "away", node.directory)
    watch.read(node, ())
    node.pass_time(10)
    node.count(7, "8:1", reads=10, read_bytes=10)
    mounts, note = watch.read(node, ())
    assert ([(one.job, one.read) for one in mounts], note) == ([(7, 1.0)], "")
