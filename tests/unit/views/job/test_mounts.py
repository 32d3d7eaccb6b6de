"""Mounts and network of a job, from the kernel and from the series of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccagent.errors import CcagentError
from ccagent.stores.metrics.line_keys import MOUNT, NETWORK, part_name
from ccagent.views.job.figures import JobFigures, NodeFigures
from ccagent.views.job.formats import encode_report, format_report
from ccagent.views.job.local import read_mounts
from ccagent.views.job.mounts import (
    JobMounts,
    JobPartSums,
    amount_of,
    format_mounts,
    format_network,
    part_metrics,
)
from ccagent.views.job.rules import make_report
from ccagent.views.terminal import Style
from ccagent.views.top.reader import NOT_LOADED
from tests.support.job_io import JobIoNode
from tests.support.tree import TreeNode


@pytest.fixture
def mounts(tmp_path: Path) -> JobMounts:
    node = JobIoNode(tmp_path)
    node.count(7, "8:1", writes=1, write_bytes=100)
    node.count(7, "0:40", reads=20, read_bytes=3 << 30, async_reads=5, async_read_bytes=1 << 30)
    node.count(7, "0:40", opens=4000, unlinks=1)
    node.count(8, "0:41", reads=1, read_bytes=9 << 30)
    return read_mounts(node, 7)


def test_the_totals_of_a_job_by_mount(mounts: JobMounts) -> None:
    assert format_mounts(mounts) == [
        "/home lustre: 4GB read in 25 calls, 0B written in 0 calls, 4001 metadata operations",
        "/ ext4: 0B read in 0 calls, 100B written in 1 call, 0 metadata operations",
    ]


def test_they_are_in_the_report_and_its_json(mounts: JobMounts) -> None:
    report = make_report(JobFigures(job="7"))
    for width in (20, 80):
        text = format_report(report, Style(), width, mounts)
        assert "mounts  /home" in text
        assert all(len(line) <= width for line in text.splitlines())
    found = json.loads(encode_report(report, mounts))["mounts"]
    assert [(one["point"], one["read"]) for one in found["mounts"]] == [
        ("/home", 4 << 30),
        ("/", 0),
    ]
    assert "mounts" not in json.loads(encode_report(report))


def test_many_are_cut_short() -> None:
    one = read_mounts_of(9)
    assert len(format_mounts(one)) == 6
    assert format_mounts(one)[-1] == "and 4 more: ccagent jobio show"


def read_mounts_of(count: int) -> JobMounts:
    from ccagent.views.job.mounts import JobMount

    return JobMounts(mounts=tuple(
        JobMount(point=f"/{n}", type="ext4", source="", read=0, written=0, reads=0, writes=0,
                 metadata=1)
        for n in range(count)
    ))  # fmt: skip


def test_a_kernel_without_the_programs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = TreeNode(tmp_path)
    assert format_mounts(read_mounts(node, 7)) == [NOT_LOADED]

    def fail(*_: object) -> bytes:
        raise CcagentError("damaged")

    monkeypatch.setattr(node, "read", fail)
    assert format_mounts(read_mounts(node, 7)) == ["I/O by mount: damaged"]
    assert format_mounts(JobMounts()) == ["none was used since the kernel counts"]


def test_rdma_of_a_job_is_a_line_of_its_network() -> None:
    found = JobMounts(rdma={"queue_pairs": 16, "completion_queues": 1, "memory": 4 << 20})
    assert format_network(found) == [
        "RDMA: 16 queue pairs, 1 completion queue, 0 memory regions of 4MB"
    ]
    report = make_report(JobFigures(job="7"))
    assert json.loads(encode_report(report, found))["mounts"]["rdma"]["queue_pairs"] == 16


HOME = part_name({"mountpoint": "/home", "fstype": "nfs4", "source": "nfs1:/home"}, MOUNT)
TCP = part_name({"layer": "socket", "proto": "tcp", "loopback": "yes"}, NETWORK)
PORT = part_name({"layer": "port"}, NETWORK)


@pytest.mark.parametrize(
    ("values", "amount"),
    [
        ([], 0),
        ([2.0], 120),
        ([1.0, 2.0, 3.0], 360),
        # A sample every two steps stands for both.
        ([1.0, None, 2.0, None, 3.0], 720),
        # What was not sent is not made up.
        ([1.0, 1.0, 1.0, None, None, None, 1.0], 240),
        ([-1.0, 1e300, float("nan"), float("inf"), 1.0], 60),
    ],
)
def test_a_rate_stands_for_the_usual_time(values: list[float | None], amount: float) -> None:
    assert amount_of("job_fs_read", values, 60) == amount


def test_parts_are_summed_up_over_nodes() -> None:
    sums = JobPartSums()
    assert sums.finish() is None
    for node, part, field, amount in (
        ("a", HOME, "job_fs_read", 1000.4), ("b", HOME, "job_fs_read", 24),
        ("b", HOME, "job_fs_metadata", 7),
        ("a", TCP, "job_net_sent", 5e9), ("a", PORT, "job_net_ports_received", 1e12),
    ):  # fmt: skip
        sums.add(node, part, field, amount)
    found = sums.finish()
    assert found is not None
    (mount,) = found.mounts
    assert (mount.point, mount.type, mount.source) == ("/home", "nfs4", "nfs1:/home")
    assert (mount.read, mount.written, mount.metadata) == (1024, 0, 7)
    assert format_network(found) == [
        "ports of its nodes (InfiniBand and others): 931GB received, 0B sent",
        "TCP within a node: 0B received, 4.7GB sent",
    ]
    nodes = tuple(NodeFigures(name=name) for name in "abc")
    text = format_report(make_report(JobFigures(job="7", nodes=nodes)), Style(), 80, found)
    assert "        mounts and network of 2 of 3 nodes\n" in text
    assert "mounts  /home nfs4: 1KB read" in text
    assert "network ports of its nodes" in text


def test_a_job_without_mounts_has_its_network_alone() -> None:
    sums = JobPartSums()
    sums.add("a", TCP, "job_net_sent", 1)
    found = sums.finish()
    assert found is not None
    assert (format_mounts(found), len(format_network(found))) == ([], 1)


def test_time_in_calls_is_their_number_times_their_mean_time() -> None:
    sums = JobPartSums()
    for node, calls, micros in (("a", 1000, 2000.0), ("b", 3000, 4000.0)):
        sums.add(node, HOME, "job_fs_reads", calls)
        sums.add(node, HOME, "job_fs_read_time", amount_of("job_fs_read_time", [micros, None], 60))
    found = sums.finish()
    assert found is not None
    assert (found.mounts[0].busy, found.mounts[0].latency) == (14.0, 3.5)
    assert "3.5 ms a call" in format_mounts(found)[0]


def test_other_parts_have_no_sums() -> None:
    assert part_metrics("partcpu,share=active") == {}
    assert part_metrics(HOME)["job_fs_read_time"] == "reads"
