"""Figures of the KPIs: those of `metrics` and `sample`, from the same files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.agents.fast.applications import (
    Applications,
    MonitoredApplication,
    find_own_groups,
    list_tree,
    parse_groups,
    read_tree,
)
from ccagent.agents.fast.kept_state import KeptState
from ccagent.agents.fast.kpis import (
    KpiReader,
    kpi_points,
    level,
    metric_name,
    read_bandwidth_counter,
)
from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.settings import FastSettings
from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.cgroup.jobs import machine_scopes
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from pathlib import Path

NET = (
    "Inter-|   Receive | Transmit\n face |bytes |bytes\n  eth0: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
)


class KpiNode(TreeNode):
    """A node of two CPUs with a network card, whose counters the test moves."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.file("sys/devices/system/cpu/online", "0-1\n")
        self.file("sys/class/net/eth0/device/x", "")
        self.counters(0)
        self.write("vmstat", "pgfault 1\npgmajfault 1\npswpin 0\npswpout 0\n")

    def file(self, name: str, content: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def counters(self, seconds: int) -> None:
        """Move all counters by so many seconds of 30 % CPU, 10 % of waiting and 12 MB/s."""
        tenth = 10 * seconds
        times = f"{2 * tenth} 0 {tenth} {6 * tenth} {tenth} 0 0 0 0 0"
        cpus = f"cpu0 {times}\ncpu1 {times}\n"
        self.write("stat", f"cpu 1 1 1 1 1 1 1 1\n{cpus}ctxt 1\nbtime 1700000000\n")
        self.write("net/dev", NET.format(10_000_000 * seconds, 2_000_000 * seconds))


@pytest.fixture
def node(tmp_path: Path) -> KpiNode:
    return KpiNode(tmp_path / "node")


def _metrics(agent: MetricsAgent, node: TreeNode) -> dict[str, float]:
    return {
        point.name: float(point.value) / agent.outputs[point.name].factor
        for point in agent.sample(node)
        if point.tags["type"] == "node" and "stype" not in point.tags
    }


def test_kpis_of_the_node_are_the_figures_of_metrics(node: KpiNode) -> None:
    reader = KpiReader(FastSettings())
    agent = MetricsAgent(MetricsSettings(readers=("cpu", "memory", "network")), frozenset({"line"}))
    agent.prepare(node)
    first = reader.read(node, [])
    assert first.node.keys() == {fast.NODE_MEMORY}
    node.counters(5)
    node.still.passed += 5
    found = reader.read(node, []).node
    metrics = _metrics(agent, node)
    assert found[fast.NODE_CPU] == pytest.approx(30.0)
    assert found[fast.NODE_CPU] == pytest.approx(100 - metrics["cpu_idle"] - metrics["cpu_iowait"])
    assert found[fast.NODE_MEMORY] == pytest.approx(metrics["mem_used"]) == 4_000 * 1024
    assert found[fast.NODE_INTERCONNECT] == pytest.approx(metrics["net_bw"]) == 12e6
    assert found[fast.COMMUNICATION] == "medium"
    assert fast.NODE_MEMORY_BANDWIDTH not in found


def test_levels_of_schedulers_are_by_the_figures_of_metrics(node: KpiNode) -> None:
    wanted = [fast.COMPUTE, fast.INPUT_OUTPUT, fast.ENERGY]
    zone = "sys/class/powercap/intel-rapl:0"
    node.file("sys/block/sda/device/x", "")

    def count(seconds: int) -> None:
        node.counters(seconds)
        sectors = seconds * 20_000_000 // 512
        node.write("diskstats", f"   8  0 sda 1 0 {sectors} 0 1 0 0 0 0 0 0\n")
        node.file(f"{zone}/name", "package-0\n")
        node.file(f"{zone}/max_energy_range_uj", "262143328850\n")
        node.file(f"{zone}/energy_uj", f"{400_000_000 * seconds}\n")

    count(0)
    reader = KpiReader(FastSettings())
    reader.read(node, [], wanted)
    count(2)
    node.still.passed += 2
    assert reader.read(node, [], wanted).node == {
        fast.COMPUTE: "medium", fast.INPUT_OUTPUT: "medium", fast.ENERGY: "high",
    }  # fmt: skip


def test_only_what_is_wanted_is_reported(node: KpiNode) -> None:
    reader = KpiReader(FastSettings())
    reader.read(node, [], [fast.COMMUNICATION])
    node.counters(1)
    node.still.passed += 1
    assert reader.read(node, [], [fast.COMMUNICATION]).node == {fast.COMMUNICATION: "medium"}


def test_infiniband_comes_before_the_network(node: KpiNode) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    for name, value in (("port_rcv_data", 100), ("port_xmit_data", 200)):
        node.file(f"{port}/counters/{name}", f"{value}\n")
    reader = KpiReader(FastSettings())
    reader.read(node, [])
    node.counters(2)
    node.file(f"{port}/counters/port_rcv_data", f"{100 + 2_000_000_000}\n")
    node.still.passed += 2
    found = reader.read(node, []).node
    assert found[fast.NODE_INTERCONNECT] == 4e9
    assert found[fast.COMMUNICATION] == "high"
    for name in ("port_rcv_data", "port_xmit_data"):
        node.file(f"{port}/counters/{name}", "")
    node.counters(4)
    node.still.passed += 2
    assert fast.NODE_INTERCONNECT not in reader.read(node, []).node


def test_resctrl_counts_memory_traffic_where_perf_does_not(node: KpiNode) -> None:
    assert read_bandwidth_counter(node) is None
    root = "sys/fs/resctrl"
    node.file(f"{root}/mon_data/mon_L3_00/mbm_total_bytes", "1000\n")
    node.file(f"{root}/mon_data/mon_L3_01/mbm_total_bytes", "Unavailable\n")
    node.file(f"{root}/jobs/mon_data/mon_L3_00/mbm_total_bytes", "500\n")
    node.file(f"{root}/mon_groups/x/mon_data/mon_L3_00/mbm_total_bytes", "9999\n")
    assert read_bandwidth_counter(node) == 1500
    reader = KpiReader(FastSettings())
    reader.read(node, [])
    node.file(f"{root}/mon_data/mon_L3_00/mbm_total_bytes", f"{1000 + 6_000_000}\n")
    node.still.passed += 3
    assert reader.read(node, []).node[fast.NODE_MEMORY_BANDWIDTH] == 2e6


@pytest.mark.parametrize("version", [1, 2])
def test_kpis_of_a_job_are_what_its_control_group_counts(node: KpiNode, version: int) -> None:
    def write(usage: int, memory: int) -> None:
        if version == 1:
            node.file("sys/fs/cgroup/cpuacct/slurm/uid_1/job_42/cpuacct.usage", f"{usage}\n")
            group = "sys/fs/cgroup/memory/slurm/uid_1/job_42"
            node.file(f"{group}/memory.usage_in_bytes", f"{memory}\n")
        else:
            group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
            node.file(f"{group}/cpu.stat", f"usage_usec {usage // 1000}\nuser_usec 1\n")
            node.file(f"{group}/memory.current", f"{memory}\n")

    write(5_000_000_000, 100_000_000)
    reader, applications = KpiReader(FastSettings()), Applications(KeptState(), FastSettings())
    reader.read(node, applications.list_monitored(node))
    before = JobCgroups().read(node)[42]
    write(5_000_000_000 + 15_000_000_000, 500_000_000)
    node.still.passed += 10
    ((application, values),) = reader.read(node, applications.list_monitored(node)).applications
    after = JobCgroups().read(node)[42]
    assert application.job_id == "42"
    assert values[fast.APPLICATION_MEMORY] == after.mem_used == 500_000_000
    assert after.cpu_time is not None
    assert before.cpu_time is not None
    cpu = (after.cpu_time - before.cpu_time) / 10 / 1e9 / 2 * 100
    assert values[fast.APPLICATION_CPU] == cpu == 75.0


def test_a_process_without_a_group_of_its_own_is_summed_with_its_descendants(
    node: KpiNode,
) -> None:
    for pid, parent, ticks in ((100, 1, 500), (101, 100, 300), (102, 101, 0), (200, 1, 9000)):
        node.process(pid, ppid=parent, utime=ticks, statm="300 250 50 1 0 200 0\n")
        node.write(f"{pid}/task/{pid}/children", "")
    node.write("100/task/100/children", "101 ")
    node.write("101/task/101/children", "102 ")
    assert list_tree(node, 100) == [100, 101, 102]
    assert read_tree(node, [100, 101, 102]) == (8_000_000_000, 750 * 4096)
    reader = KpiReader(FastSettings())
    application = MonitoredApplication("", 100, "vm-1", 50_000)
    reader.read(node, [application])
    node.process(101, ppid=100, utime=400, statm="300 250 50 1 0 200 0\n")
    node.still.passed += 2
    ((_, values),) = reader.read(node, [application]).applications
    assert values == {
        fast.APPLICATION_MEMORY: 750 * 4096,
        fast.APPLICATION_CPU: 25.0,
        fast.RUNTIME: "low",
    }


def test_descendants_are_found_on_kernels_that_list_no_children(node: KpiNode) -> None:
    for pid, parent in ((100, 1), (101, 100), (102, 101), (200, 1)):
        node.process(pid, ppid=parent)
        node.write(f"{pid}/task/{pid}/stat", "")
    assert sorted(list_tree(node, 100)) == [100, 101, 102]
    assert list_tree(node, 4711) == []


def test_a_group_that_others_share_is_not_a_process_own(node: KpiNode) -> None:
    node.process(100, cgroup="3:cpuacct:/mine\n4:memory:/shared\n0::/\n")
    node.file("sys/fs/cgroup/cpuacct/mine/cgroup.procs", "100\n")
    node.file("sys/fs/cgroup/memory/shared/cgroup.procs", "100\n101\n")
    assert find_own_groups(node, 100, {100}) == {"cpuacct": ["sys/fs/cgroup/cpuacct/mine"]}
    node.process(100, cgroup="0::/user.slice\n")
    node.file("sys/fs/cgroup/user.slice/cgroup.procs", "100\n")
    node.file("sys/fs/cgroup/user.slice/below/cgroup.procs", "7\n")
    assert find_own_groups(node, 100, {100}) == {}


def test_the_scope_of_a_machine_is_its_own(node: KpiNode) -> None:
    scope = "/machine.slice/machine-qemu\\x2d3\\x2dvm\\x2done.scope"
    node.process(100, cgroup=f"0::{scope}/libvirt/emulator\n")
    node.file(f"sys/fs/cgroup{scope}/libvirt/emulator/cgroup.procs", "100\n")
    node.file(f"sys/fs/cgroup{scope}/cpu.stat", "usage_usec 7\n")
    assert find_own_groups(node, 100, {100}) == {"v2": [f"sys/fs/cgroup{scope}"]}
    assert [*machine_scopes(node, ())] == [("vm-one", "v2", f"sys/fs/cgroup{scope}")]


def test_a_path_that_leads_elsewhere_is_no_group() -> None:
    assert parse_groups(b"0::/../../etc\n3:cpu,cpuacct:/a:b\nx\n\xff:\n") == {
        "cpu": "/a:b", "cpuacct": "/a:b",
    }  # fmt: skip


def test_levels_begin_at_their_thresholds() -> None:
    assert [level(value, 10, 20) for value in (9.9, 10, 19.9, 20)] == [
        "low", "medium", "medium", "high",
    ]  # fmt: skip


def test_kpis_are_points_with_the_tags_of_their_application(node: KpiNode) -> None:
    node.process(100)
    node.write("100/task/100/children", "")
    reader = KpiReader(FastSettings())
    found = reader.read(node, [MonitoredApplication("", 100, "vm 1", 50_000)])
    lines = [point.encode_line()[1] for point in kpi_points(node, found)]
    of_node = "cluster=test.org,hostname=c1-1"
    of_machine = f"{of_node},stype=vm,stype-id=vm\\ 1"
    assert lines == [
        f"fast_node_mem,{of_node},type=node value=4096000.0 1700001000",
        f"fast_application_mem,{of_machine},type=node value=1024000.0 1700001000",
        f"fast_expected_runtime,{of_machine},type=node value=1.0 1700001000",
    ]


def test_names_of_applications_kpis_become_names_of_metrics() -> None:
    assert metric_name("Memory usage (GB/s)") == "fast_app_memory_usage_gb_s"
    assert metric_name("x,y=1\n") == "fast_app_x_y_1"
    assert metric_name("***") == ""
    assert len(metric_name("x" * 500)) == 73
