"""Metrics of the cpu: load, shares of time, counters of /proc/stat."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Gauge, Scope
from ccagent.agents.metrics.readers.cpu import CpuReader, CpuSettings
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.node import Node
from ccagent.machine.procfs.system import parse_kernel_stat
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.paths import MACHINES
from tests.support.recorded import RecordedNode
from tests.support.tree import TreeNode

STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

Shares = dict[Scope, tuple[float, ...]]


def stat(*cpus: str) -> str:
    """Lines `cpuN` with these times, guest and guest_nice included where they are given."""
    return "cpu  9 9 9 9 9 9 9 9 9 9\n" + "".join(f"cpu{cpu}\n" for cpu in cpus) + "btime 5\n"


def shares(reader: CpuReader, node: Node) -> Shares:
    """Read, and give percent in the order of /proc/stat."""
    found: dict[Scope, dict[str, float]] = {}
    for each in reader.read(node):
        if each.metric in CpuReader.metrics and CpuReader.metrics[each.metric].unit == "%":
            assert isinstance(each, Gauge)
            assert each.metric not in found.setdefault(each.scope, {})
            found[each.scope][each.metric] = each.value
    return {
        scope: tuple(values[f"cpu_{state}"] for state in STATES) for scope, values in found.items()
    }


def shares_between(node: TreeNode, *contents: str) -> Shares:
    """Return the shares of the last of several readings."""
    reader = CpuReader()
    found: Shares = {}
    for content in contents:
        node.write("stat", content)
        found = shares(reader, node)
        assert reader.errors == []
    return found


def hwthread(number: int) -> Scope:
    return Scope("hwthread", str(number))


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def test_loads_and_threads_of_a_recorded_machine() -> None:
    found = list(CpuReader().read(RecordedNode("smt-slurm-v1")))
    assert [each for each in found if isinstance(each, Gauge)] == [
        Gauge("cpu_load", 9.81),
        Gauge("cpu_load5", 8.02),
        Gauge("cpu_load15", 4.5),
        Gauge("proc_run", 11),
        Gauge("proc_total", 842),
    ]


def test_counters_of_a_recorded_machine() -> None:
    found = list(CpuReader().read(RecordedNode("smt-slurm-v1")))
    assert [each for each in found if isinstance(each, Count)] == [
        Count("interrupts", 91230447),
        Count("context_switches", 142617070),
        Count("forks", 812345),
    ]


def test_what_the_front_end_needs_is_sent_and_little_else() -> None:
    metrics = CpuReader.metrics
    wanted = {name for name, metric in metrics.items() if metric.is_default}
    assert wanted == {"cpu_load", *(f"cpu_{state}" for state in STATES)}
    assert (metrics["cpu_user"].type, metrics["cpu_user"].unit) == ("hwthread", "%")


def test_the_first_reading_has_no_shares(node: TreeNode) -> None:
    assert shares_between(node, stat("0 10 0 0 90 0 0 0 0 0 0")) == {}


def test_each_state_has_its_share_of_the_time_since_the_reading_before(node: TreeNode) -> None:
    found = shares_between(
        node,
        stat("0 1000 1000 1000 1000 1000 1000 1000 1000 0 0"),
        stat("0 1100 1050 1040 1200 1010 1020 1030 1050 0 0"),
    )
    assert found[hwthread(0)] == (20, 10, 8, 40, 2, 4, 6, 10)


def test_guest_time_is_part_of_user_and_counts_once(node: TreeNode) -> None:
    found = shares_between(node, stat("0 0 0 0 0 0 0 0 0 0 0"), stat("0 60 20 0 20 0 0 0 0 60 20"))
    assert found[hwthread(0)] == (60, 20, 0, 20, 0, 0, 0, 0)


def test_the_node_has_the_mean_of_its_hwthreads(node: TreeNode) -> None:
    # The second ran half of the ticks: it still counts as much as the first.
    found = shares_between(
        node,
        stat("0 0 0 0 0 0 0 0 0 0 0", "1 0 0 0 0 0 0 0 0 0 0"),
        stat("0 100 0 0 0 0 0 0 0 0 0", "1 10 0 0 40 0 0 0 0 0 0"),
    )
    assert found[NODE][0] == 60
    assert found[NODE][3] == 40


@pytest.mark.parametrize(
    ("types", "scopes"),
    [
        (("node", "hwthread"), {NODE, hwthread(0)}),
        (("node",), {NODE}),
        (("hwthread",), {hwthread(0)}),
        ((), set[Scope]()),
    ],
)
def test_what_the_shares_are_told_of_is_an_option(
    node: TreeNode, types: tuple[Literal["node", "hwthread"], ...], scopes: set[Scope]
) -> None:
    reader = CpuReader(CpuSettings(types=types))
    node.write("stat", stat("0 0 0 0 0 0 0 0 0 0 0"))
    assert shares(reader, node) == {}
    node.write("stat", stat("0 9 0 0 1 0 0 0 0 0 0"))
    assert set(shares(reader, node)) == scopes


def test_iowait_that_goes_back_is_nothing(node: TreeNode) -> None:
    found = shares_between(
        node, stat("0 100 0 0 100 100 0 0 0 0 0"), stat("0 150 0 0 150 90 0 0 0 0 0")
    )
    assert found[hwthread(0)] == (50, 0, 0, 50, 0, 0, 0, 0)


def test_what_went_back_counts_only_once_when_it_comes_again(node: TreeNode) -> None:
    found = shares_between(
        node,
        stat("0 100 0 0 100 100 0 0 0 0 0"),
        stat("0 150 0 0 150 90 0 0 0 0 0"),
        stat("0 200 0 0 200 100 0 0 0 0 0"),
    )
    assert found[hwthread(0)] == (50, 0, 0, 50, 0, 0, 0, 0)


def test_counters_that_begin_anew_cost_their_hwthread_one_reading(node: TreeNode) -> None:
    before = stat("0 5000 0 0 9000 0 0 0 0 0 0", "1 0 0 0 0 0 0 0 0 0 0")
    anew = stat("0 5010 0 0 100 0 0 0 0 0 0", "1 0 0 0 100 0 0 0 0 0 0")
    after = stat("0 5020 0 0 130 0 0 0 0 0 0", "1 0 0 0 200 0 0 0 0 0 0")
    found = shares_between(node, before, anew)
    assert set(found) == {NODE, hwthread(1)}
    assert found[NODE] == found[hwthread(1)]
    assert shares_between(node, before, anew, after)[hwthread(0)] == (25, 0, 0, 75, 0, 0, 0, 0)


def test_an_offline_cpu_is_left_out_until_it_was_there_twice(node: TreeNode) -> None:
    both = stat("0 0 0 0 100 0 0 0 0 0 0", "1 500 0 0 100 0 0 0 0 0 0")
    one = stat("0 0 0 0 200 0 0 0 0 0 0")
    back = stat("0 0 0 0 300 0 0 0 0 0 0", "1 500 0 0 100 0 0 0 0 0 0")
    twice = stat("0 0 0 0 400 0 0 0 0 0 0", "1 600 0 0 100 0 0 0 0 0 0")
    assert set(shares_between(node, both, one)) == {NODE, hwthread(0)}
    assert set(shares_between(node, both, one, back)) == {NODE, hwthread(0)}
    found = shares_between(node, both, one, back, twice)
    assert found[hwthread(1)][0] == 100
    assert found[NODE][0] == 50


def test_hwthreads_have_the_numbers_of_the_kernel(tmp_path: Path) -> None:
    # Of this machine cpu3 is offline.
    shutil.copytree(MACHINES / "v2-containers", tmp_path / "v2-containers")
    node = RecordedNode("v2-containers", tmp_path)
    reader = CpuReader()
    assert shares(reader, node) == {}
    path = tmp_path / "v2-containers" / "proc" / "stat"
    path.write_text(path.read_text().replace(" 9000 ", " 9100 "))
    numbers = (0, 1, 2, 4, 5, 6, 7)
    assert shares(reader, node) == dict.fromkeys(
        (NODE, *map(hwthread, numbers)), (0, 0, 100, 0, 0, 0, 0, 0)
    )


def test_without_a_tick_in_between_there_are_no_shares(node: TreeNode) -> None:
    content = stat("0 10 0 0 90 0 0 0 0 0 0")
    assert shares_between(node, content, content) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no line of a cpu"),
        ("cpu  1 2 3 4 5 6 7 8 9 10\n", "no line of a cpu"),
        ("cpu0 1 2 3 4 5 6 7\n", "not a cpu with eight times"),
        ("cpu65536 1 2 3 4 5 6 7 8\n", "not a cpu with eight times"),
        ("cpu0 1 2 3 4 5 6 7 x\n", "invalid literal"),
        ("cpu0 1 2 3 4 5 6 7 -8\n", "a time is out of range"),
        ("cpu0 1 2 3 4 5 6 7 18446744073709551616\n", "a time is out of range"),
        ("cpu0 1 2 3 4 5 6 7 8\nctxt\n", "list index out of range"),
        ("cpu0 1 2 3 4 5 6 7 8\nctxt -1\n", "out of range"),
    ],
)
def test_a_broken_stat_costs_only_itself(node: TreeNode, text: str, complaint: str) -> None:
    node.write("stat", text)
    reader = CpuReader()
    assert [each.metric for each in reader.read(node)] == [
        "cpu_load",
        "cpu_load5",
        "cpu_load15",
        "proc_run",
        "proc_total",
    ]
    (error,) = reader.errors
    assert error.startswith("/proc/stat: ")
    assert complaint in error


def test_a_broken_loadavg_costs_only_itself_and_is_forgotten(node: TreeNode) -> None:
    reader = CpuReader()
    node.write("loadavg", "high\n")
    node.write("stat", "cpu0 1 2 3 4 5 6 7 8\nctxt 5\n")
    assert list(reader.read(node)) == [Count("context_switches", 5)]
    assert [error.partition(":")[0] for error in reader.errors] == ["/proc/loadavg"]
    node.write("loadavg", "0.50 0.25 0.00 2/345 999\n")
    assert Gauge("cpu_load", 0.5) in list(reader.read(node))
    assert reader.errors == []


def test_a_broken_loadavg_does_not_cost_the_times_since_boot(node: TreeNode) -> None:
    node.write("loadavg", "none\n")
    reader = CpuReader()
    assert "cpu_user" in {each.metric for each in reader.read_raw(node)}
    assert len(reader.errors) == 1


def test_counters_of_a_damaged_stat_leave_the_loads(node: TreeNode) -> None:
    node.write("loadavg", "1.00 2.00 3.00 4/5 6\n")
    node.write("stat", "cpu0 x\n")
    reader = CpuReader()
    assert [each.metric for each in reader.read_raw(node)] == [
        "cpu_load", "cpu_load5", "cpu_load15", "proc_run", "proc_total",
    ]  # fmt: skip
    assert "proc/stat" in reader.errors[0]


def test_shares_go_on_after_a_stat_that_was_broken(node: TreeNode) -> None:
    reader = CpuReader()
    for content in (stat("0 0 0 0 0 0 0 0 0 0 0"), "cpu0 x", stat("0 5 0 0 15 0 0 0 0 0 0")):
        node.write("stat", content)
        found = shares(reader, node)
    assert found[NODE] == (25, 0, 0, 75, 0, 0, 0, 0)


def test_one_of_the_files_is_enough(node: TreeNode) -> None:
    (node.path / "proc" / "stat").unlink()
    reader = CpuReader()
    assert Gauge("cpu_load", 0.5) in list(reader.read(node))
    assert reader.errors == []


def test_without_proc_there_is_no_cpu(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        CpuReader().read(Node(root=str(tmp_path), hostname="n1", cluster="c1"))


_NUMBERS = st.integers(0, 2000) | st.integers(0, LARGEST_UINT)
_READINGS = st.lists(
    st.dictionaries(
        st.integers(0, 3), st.lists(_NUMBERS, min_size=10, max_size=10), min_size=1, max_size=4
    ),
    min_size=2,
    max_size=5,
)


@given(_READINGS)
def test_whatever_counters_do_shares_make_up_a_hundred(
    readings: list[dict[int, list[int]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = TreeNode(Path(directory))
        reader = CpuReader()
        for reading in readings:
            lines = [f"{cpu} " + " ".join(map(str, ticks)) for cpu, ticks in reading.items()]
            node.write("stat", stat(*lines))
            for scope, row in shares(reader, node).items():
                assert scope == NODE or int(scope.type_id) in reading
                assert all(0 <= share <= 100 for share in row)
                assert math.isclose(sum(row), 100)


@given(
    st.binary()
    | st.lists(
        st.sampled_from(["cpu0", "cpu12", "cpu", "intr", "ctxt", "processes", "7", "-1", "1e3"])
        | st.integers(0, 2**70).map(str)
    ).map(lambda words: " ".join(words).replace(" c", "\nc").encode())
)
def test_a_stat_is_understood_or_unparsable(content: bytes) -> None:
    try:
        counters = parse_kernel_stat(content)
    except UnparsableError:
        return
    for cpu, ticks in counters.times.items():
        assert 0 <= cpu <= 65_535
        assert len(ticks) == 8
        assert all(0 <= number <= LARGEST_UINT for number in ticks)
    assert all(0 <= number <= LARGEST_UINT for number in counters.events.values())


def test_times_of_this_machine_are_those_of_psutil() -> None:
    node = Node()
    before = psutil.cpu_times(percpu=True)
    counters = parse_kernel_stat(node.read("proc/stat"))
    after = psutil.cpu_times(percpu=True)
    assert len(counters.times) == psutil.cpu_count()
    for first, ticks, last in zip(before, counters.times.values(), after, strict=True):
        for state, number in zip(STATES, ticks, strict=True):
            if state in {"idle", "iowait"}:  # those may go back
                continue
            seconds = number / node.clock_ticks
            assert getattr(first, state) <= seconds <= getattr(last, state)


def test_events_of_this_machine_are_those_of_psutil() -> None:
    before = psutil.cpu_stats()
    events = parse_kernel_stat(Node().read("proc/stat")).events
    after = psutil.cpu_stats()
    assert before.ctx_switches <= events["ctxt"] <= after.ctx_switches
    assert before.interrupts <= events["intr"] <= after.interrupts
