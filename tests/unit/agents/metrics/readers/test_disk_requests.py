"""Requests of disks, by device: merged, time, queues, discards, flushes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Gauge, Scope
from ccagent.agents.metrics.readers.disk import (
    REQUEST_METRICS,
    DiskReader,
    DiskRequests,
    DiskSettings,
    compute_disk_deltas,
    request_figures,
)
from tests.support.tree import TreeNode

# vda of a virtual machine with Linux 6.18, as /proc/diskstats had it twice, some minutes apart; the
# tests take 16 s for them.
EARLIER = (
    "587056 38960 13399242 1084903 1026663 1277620 79398576 755896 0 290372 2030260 "
    "1408081 414 66137968 177685 138638 11774"
)
LATER = (
    "619210 42041 13842146 1231693 1049534 1289228 79742672 762985 0 302656 2191985 "
    "1485482 414 71366288 185187 144940 12119"
)


def disk(name: str) -> Scope:
    return Scope(stype="disk", stype_id=name)


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    for name in ("vda", "vdb"):
        (tmp_path / "sys/block" / name / "device").mkdir(parents=True)
    return TreeNode(tmp_path)


def write(node: TreeNode, **disks: str) -> None:
    lines = [f" 254       0 {name} {values}\n" for name, values in disks.items()]
    node.write("diskstats", "".join(lines))


def read(reader: DiskReader, node: TreeNode) -> dict[tuple[str, Scope], float]:
    found = list(reader.read(node))
    assert {each.metric for each in found} <= set(reader.metrics)
    values = {(each.metric, each.scope): each.value for each in found}
    assert len(values) == len(found)
    return values


def test_a_recorded_disk(node: TreeNode) -> None:
    reader = DiskReader(DiskSettings(by_device=True))
    write(node, vda=EARLIER)
    first = read(reader, node)
    assert {metric for metric, _ in first} == {
        "disk_read", "disk_write", "disk_reads", "disk_writes", "disk_in_progress",
    }  # fmt: skip
    node.still.passed += 16
    write(node, vda=LATER)
    found = read(reader, node)
    expected = {
        "disk_read": 442_904 * 512,
        "disk_write": 344_096 * 512,
        "disk_reads": 32_154,
        "disk_writes": 22_871,
        "disk_busy": pytest.approx(12_284 / 160),
        "disk_reads_merged": 3_081 / 16,
        "disk_writes_merged": 11_608 / 16,
        "disk_read_time": pytest.approx(146.790 / 32_154),
        "disk_write_time": pytest.approx(7.089 / 22_871),
        "disk_in_progress": 0,
        "disk_queue": pytest.approx(161.725 / 16),
        "disk_discards": 77_401 / 16,
        "disk_discard": 5_228_320 * 512 / 16,
        "disk_discard_time": pytest.approx(7.502 / 77_401),
        "disk_flushes": 6_302 / 16,
        "disk_flush_time": pytest.approx(0.345 / 6_302),
    }
    assert found == {
        (metric, scope): value
        for metric, value in expected.items()
        for scope in (disk("vda"), NODE)
    }
    assert reader.errors == []


def test_the_node_has_the_sum_and_the_mean_time_of_all_requests() -> None:
    requests = DiskRequests()
    requests.add({"sda": [0] * 17, "sdb": [0] * 17}, 0)
    # 10 reads of 2 ms, 30 of 6 ms: 40 of 5 ms. The queues are 0.5 and 1.5.
    fast = [10, 1, 80, 20, 0, 0, 0, 0, 2, 9, 500, 0, 0, 0, 0, 0, 0]
    slow = [30, 2, 80, 180, 0, 0, 0, 0, 3, 9, 1500, 0, 0, 0, 0, 0, 0]
    found = requests.add({"sda": fast, "sdb": slow}, 1.0)
    values = {(each.metric, each.scope): each.value for each in found}
    assert [values["disk_read_time", scope] for scope in (disk("sda"), disk("sdb"), NODE)] == [
        0.002, 0.006, 0.005,
    ]  # fmt: skip
    assert (values["disk_queue", NODE], values["disk_in_progress", NODE]) == (2.0, 5)
    assert values["disk_reads_merged", NODE] == 3
    assert not any(metric == "disk_write_time" for metric, _ in values)


def test_the_value_of_the_node_comes_last(node: TreeNode) -> None:
    reader = DiskReader(DiskSettings(by_device=True))
    write(node, vda=EARLIER, vdb=EARLIER)
    reader.read(node)
    node.still.passed += 1
    write(node, vda=LATER, vdb=LATER)
    last = {each.metric: each.scope for each in reader.read(node)}
    assert set(last) == set(reader.metrics)
    assert set(last.values()) == {NODE}


def test_disks_come_in_the_order_of_their_names(node: TreeNode) -> None:
    """The order of a set, which differs between processes, would be another one."""
    names = [f"vd{letter}" for letter in "abcdefgh"]
    for name in names:
        node.write(f"../sys/block/{name}/device/vendor", "0x1af4\n")
    reader = DiskReader(DiskSettings(by_device=True))
    write(node, **dict.fromkeys(names, EARLIER))
    reader.read(node)
    node.still.passed += 1
    write(node, **dict.fromkeys(names, LATER))
    for metric in ("disk_busy", "disk_read", "disk_queue"):
        found = [each.scope.stype_id for each in reader.read(node) if each.metric == metric]
        node.still.passed += 1
        assert found == [*names, ""]


def test_without_the_setting_there_is_only_the_node(node: TreeNode) -> None:
    reader = DiskReader()
    write(node, vda=EARLIER)
    reader.read(node)
    node.still.passed += 1
    assert {(each.metric, each.scope) for each in reader.read(node)} == {
        (metric, NODE)
        for metric in ("disk_read", "disk_write", "disk_reads", "disk_writes", "disk_busy")
    }
    assert reader.absent == dict.fromkeys(REQUEST_METRICS, "disk.by-device is off")


def test_milliseconds_that_wrap_go_on() -> None:
    before = [100, 0, 0, 2**32 - 5, *[0] * 13]
    after = [110, 0, 0, 25, *[0] * 13]
    assert compute_disk_deltas(before, after)[3] == 30
    assert request_figures(compute_disk_deltas(before, after), 1.0)["disk_read_time"] == 0.003


def test_fewer_requests_in_progress_are_no_restart() -> None:
    before = [100, 0, 0, 1000, 0, 0, 0, 0, 9, 50, 60]
    after = [101, 0, 0, 1010, 0, 0, 0, 0, 1, 55, 90]
    assert compute_disk_deltas(before, after) == [1, 0, 0, 10, 0, 0, 0, 0, 0, 5, 30]


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        (
            11,
            {"disk_discards", "disk_discard", "disk_discard_time", "disk_flushes",
             "disk_flush_time"},
        ),
        (15, {"disk_flushes", "disk_flush_time"}),
        (17, set[str]()),
    ],
)  # fmt: skip
def test_what_older_kernels_do_not_tell_is_left_out(values: int, missing: set[str]) -> None:
    assert request_figures([1] * values, 1.0).keys() == (
        REQUEST_METRICS.keys() - missing - {"disk_in_progress"}
    )


def test_a_disk_that_comes_has_no_past_and_one_that_goes_no_figures() -> None:
    requests = DiskRequests()
    requests.add({"sda": [5] * 17}, 0)
    found = requests.add({"sdb": [9] * 17}, 1.0)
    assert found == [Gauge("disk_in_progress", 9, disk("sdb")), Gauge("disk_in_progress", 9)]


_ROWS = st.lists(st.integers(0, 2**64 - 1), min_size=17, max_size=17)


@given(_ROWS, _ROWS)
def test_no_figure_is_negative_or_infinite(before: list[int], after: list[int]) -> None:
    requests = DiskRequests()
    requests.add({"sda": before}, 0)
    found = requests.add({"sda": after}, 0.5)
    assert all(each.value >= 0 and math.isfinite(each.value) for each in found)
    assert not any(isinstance(each, Count) for each in found)
