"""Mounts and network of a job, summed up from the series of a store."""

from __future__ import annotations

import pytest

from ccagent.stores.metrics.line_keys import MOUNT, NETWORK, part_name
from ccagent.views.job.figures import JobFigures, NodeFigures
from ccagent.views.job.mounts import format_mounts, format_network
from ccagent.views.job.parts import JobPartSums, part_metrics, sum_of_rates
from ccagent.views.job.report import make_report
from ccagent.views.job.text import format_report
from ccagent.views.terminal import Style

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
    assert sum_of_rates(values, 60) == amount


def test_parts_are_summed_up_over_nodes() -> None:
    sums = JobPartSums()
    assert sums.finish() is None
    for node, part, field, amount in (
        ("a", HOME, "read", 1000.4), ("b", HOME, "read", 24), ("b", HOME, "metadata", 7),
        ("a", TCP, "sent", 5e9), ("a", PORT, "received", 1e12),
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
    sums.add("a", TCP, "sent", 1)
    found = sums.finish()
    assert found is not None
    assert (format_mounts(found), len(format_network(found))) == ([], 1)


def test_other_parts_have_no_sums() -> None:
    assert part_metrics("partcpu,share=active") == {}
    assert part_metrics(HOME)["job_fs_read"] == "read"
