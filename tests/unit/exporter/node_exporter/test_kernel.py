"""cpu, stat, loadavg, schedstat, pressure, cpufreq."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import NotHereError, UnparsableError
from ccagent.exporter.node_exporter.kernel import (
    CpuCollector,
    CpufreqCollector,
    read_pressure,
    read_schedstat,
    read_stat,
)
from ccagent.exporter.node_exporter.system import read_kernel_hung
from ccagent.machine.node import Node
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode

STAT = """\
cpu  9 9 9 9 9 9 9 9 9 9
cpu0 {user} 2 300 {idle} {iowait} 6 7 8 90 10
cpu3 1 2 3 4 5 6 7 8
intr 4711 1 2 3
ctxt 99
btime 1700000000
processes 12
procs_running 2
procs_blocked 1
"""


def write(node: TreeNode, *, user: int = 100, idle: int = 40000, iowait: int = 50) -> None:
    node.write("stat", STAT.format(user=user, idle=idle, iowait=iowait))


def cpu0(found: dict[str, float], mode: str) -> float:
    return found[f'node_cpu_seconds_total{{cpu="0",mode="{mode}"}}']


def test_seconds_by_mode_of_online_cpus(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    write(node)
    found = collected(make(CpuCollector), node)
    assert (cpu0(found, "user"), cpu0(found, "idle"), cpu0(found, "steal")) == (1.0, 400.0, 0.08)
    assert found['node_cpu_seconds_total{cpu="3",mode="system"}'] == 0.03
    assert found['node_cpu_guest_seconds_total{cpu="0",mode="user"}'] == 0.9
    assert found['node_cpu_guest_seconds_total{cpu="3",mode="nice"}'] == 0


def test_times_do_not_go_back_unless_the_cpu_was_offline(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    collector = make(CpuCollector)
    write(node)
    collected(collector, node)
    write(node, user=200, idle=39_990, iowait=10)
    found = collected(collector, node)
    assert (cpu0(found, "user"), cpu0(found, "idle"), cpu0(found, "iowait")) == (2.0, 400.0, 0.5)
    write(node, user=1, idle=5, iowait=0)
    found = collected(collector, node)
    assert (cpu0(found, "user"), cpu0(found, "idle")) == (0.01, 0.05)


def test_events(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    write(node)
    assert collected(make(read_stat), node) == {
        "node_intr_total": 4711, "node_context_switches_total": 99, "node_forks_total": 12,
        "node_boot_time_seconds": 1_700_000_000, "node_procs_running": 2, "node_procs_blocked": 1,
    }  # fmt: skip


@pytest.mark.parametrize("content", ["cpu0 1 2\n", "cpu0 1 2 3 4 5 6 7 " + "9" * 30 + "\n"])
def test_a_damaged_line_of_a_cpu_is_an_error(tmp_path: Path, content: str) -> None:
    node = TreeNode(tmp_path)
    node.write("stat", content)
    with pytest.raises(UnparsableError):
        collected(make(CpuCollector), node)


def test_pressure_is_in_seconds(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    node.write("pressure/cpu", f"some {line}1500000\nfull {line}7\n")
    node.write("pressure/memory", f"some {line}1\nfull {line}2000000\n")
    node.write("pressure/io", "damaged\n")
    assert collected(make(read_pressure), node) == {
        "node_pressure_cpu_waiting_seconds_total": 1.5,
        "node_pressure_memory_waiting_seconds_total": 1e-6,
        "node_pressure_memory_stalled_seconds_total": 2.0,
    }


def test_a_kernel_without_pressure_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        collected(make(read_pressure), TreeNode(tmp_path))


def test_schedstat(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write("schedstat", "version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 2000000000 500000000 7\n")
    assert collected(make(read_schedstat), node) == {
        'node_schedstat_running_seconds_total{cpu="0"}': 2.0,
        'node_schedstat_waiting_seconds_total{cpu="0"}': 0.5,
        'node_schedstat_timeslices_total{cpu="0"}': 7,
    }


def test_frequencies_are_in_hertz(tmp_path: Path) -> None:
    for cpu, speed in (("cpu0", "2400000"), ("cpu11", "800000")):
        place = tmp_path / "sys/devices/system/cpu" / cpu / "cpufreq"
        place.mkdir(parents=True)
        (place / "scaling_cur_freq").write_text(f"{speed}\n")
    (place / "cpuinfo_avg_freq").write_text("790000\n")
    (place / "scaling_governor").write_text("powersave\n")
    (place / "scaling_available_governors").write_text("performance powersave \n")
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir()
    node = Node(root=str(tmp_path), hostname="n", cluster="c")
    assert collected(make(CpufreqCollector), node) == {
        'node_cpu_scaling_frequency_hertz{cpu="0"}': 2.4e9,
        'node_cpu_scaling_frequency_hertz{cpu="11"}': 8e8,
        'node_cpu_frequency_avg_hertz{cpu="11"}': 7.9e8,
        'node_cpu_scaling_governor{cpu="11",governor="performance"}': 0,
        'node_cpu_scaling_governor{cpu="11",governor="powersave"}': 1,
    }


def test_hwthreads_that_are_offline(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    place = tmp_path / "sys/devices/system/cpu"
    (place / "cpu0").mkdir(parents=True)
    (place / "present").write_text("0-2\n")
    (place / "online").write_text("0,2\n")
    name = 'node_cpu_online{cpu="%d"}'
    assert name % 0 not in collected(make(CpuCollector), node)
    (place / "cpu0/online").write_text("1\n")
    found = collected(make(CpuCollector), node)
    assert [found[name % cpu] for cpu in range(3)] == [1, 0, 1]


def test_hung_tasks(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    with pytest.raises(NotHereError):
        collected(make(read_kernel_hung), node)
    node.write("sys/kernel/hung_task_detect_count", "42\n")
    assert collected(make(read_kernel_hung), node) == {"node_kernel_hung_tasks_total": 42}
