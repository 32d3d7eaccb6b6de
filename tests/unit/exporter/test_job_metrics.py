"""Jobs of both versions of control groups, with the names of each set."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ccagent.errors import NotHereError
from ccagent.exporter.community_metrics import SlurmJobExporterCollector
from ccagent.exporter.job_metrics import CeemsCollector, CgroupExporterCollector, JobCollector
from tests.support.running import until
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode
from tests.unit.agents.metrics.readers.test_cgroup_jobs import MB, V1, V2

SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def add_v2(node: TreeNode, job: int, pid: int, environment: str = "") -> None:
    """Write a job of version 2 with a process of ada's."""
    files = V2 | {
        "memory.stat": V2["memory.stat"] + "swapcached 4096\n",
        "memory.swap.current": "8192\n", "memory.swap.max": "max\n", "cpuset.cpus": "0-1,4\n",
    }  # fmt: skip
    for name, text in files.items():
        write(node.path, f"{SCOPE}/job_{job}/{name}", text)
    write(node.path, f"{SCOPE}/job_{job}/step_batch/slurm/cgroup.procs", "4000\n")
    write(node.path, f"{SCOPE}/job_{job}/step_batch/user/task_0/cgroup.procs", f"{pid}\n")
    node.process(pid)
    node.write(f"{pid}/environ", environment)


def add_v1(node: TreeNode, job: int, pid: int) -> None:
    top = f"slurm/uid_1001/job_{job}"
    for controller, files in V1.items():
        for name, text in files.items():
            write(node.path, f"sys/fs/cgroup/{controller}/{top}/{name}", text)
    for name, text in (
        ("memory/{}/memory.failcnt", "3\n"), ("memory/{}/memory.memsw.usage_in_bytes",
        f"{110 * MB}\n"), ("cpuacct/{}/cpuacct.stat", "user 150\nsystem 50\n"),
        ("cpuset/{}/cpuset.cpus", "2-3\n"), ("cpuacct/{}/step_0/task_0/cgroup.procs", f"{pid}\n"),
    ):  # fmt: skip
        write(node.path, "sys/fs/cgroup/" + name.format(top), text)
    node.process(pid)


def test_a_job_of_version_2(node: TreeNode) -> None:
    add_v2(
        node, 12, 100,
        'A=b\0SLURM_JOB_ACCOUNT=chem\0SLURM_JOB_PARTITION=long\0SLURM_JOB_NAME=a"b\nc\0',
    )  # fmt: skip
    found = collected(make(JobCollector), node)
    assert found == {
        "ccagent_jobs": 1,
        "ccagent_jobs_left_out": 0,
        'ccagent_job_info{account="chem",jobid="12",name="a"b\nc",partition="long",user="ada"}': 1,
        'ccagent_job_processes{jobid="12"}': 1,
        'ccagent_job_cpu_seconds_total{jobid="12"}': 2.0,
        'ccagent_job_cpu_user_seconds_total{jobid="12"}': 1.5,
        'ccagent_job_cpu_system_seconds_total{jobid="12"}': 0.5,
        'ccagent_job_cpu_throttled_seconds_total{jobid="12"}': 0.75,
        'ccagent_job_cpus{jobid="12"}': 3,
        'ccagent_job_memory_used_bytes{jobid="12"}': 100 * MB,
        'ccagent_job_memory_peak_bytes{jobid="12"}': 150 * MB,
        'ccagent_job_memory_rss_bytes{jobid="12"}': 30 * MB,
        'ccagent_job_memory_cache_bytes{jobid="12"}': 70 * MB,
        'ccagent_job_memory_limit_bytes{jobid="12"}': 200 * MB,
        'ccagent_job_memory_swap_bytes{jobid="12"}': 8192,
        'ccagent_job_oom_kills_total{jobid="12"}': 2,
        'ccagent_job_io_read_bytes_total{jobid="12"}': 4096,
        'ccagent_job_io_written_bytes_total{jobid="12"}': 8192,
        'ccagent_job_pressure_waiting_seconds_total{jobid="12",resource="cpu"}': 0.001,
        'ccagent_job_pressure_waiting_seconds_total{jobid="12",resource="memory"}': 0.002,
        'ccagent_job_pressure_waiting_seconds_total{jobid="12",resource="io"}': 0.003,
        'ccagent_job_pressure_stalled_seconds_total{jobid="12",resource="cpu"}': 0.00001,
        'ccagent_job_pressure_stalled_seconds_total{jobid="12",resource="memory"}': 0.00002,
        'ccagent_job_pressure_stalled_seconds_total{jobid="12",resource="io"}': 0.00003,
    }


def test_an_environment_that_hangs_costs_the_names_of_its_job(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    add_v2(node, 13, 101, "SLURM_JOB_NAME=mine\0")
    is_over = node.hang("proc/100/environ")
    collector = make(JobCollector)
    expected = [
        'ccagent_job_info{account="",jobid="12",name="",partition="",user="ada"}',
        'ccagent_job_info{account="",jobid="13",name="mine",partition="",user="ada"}',
    ]
    for _ in range(3):
        collector.sources.jobs._value = None
        found = collected(collector, node)
        assert [name for name in found if "job_info" in name] == expected
    threads = [each.name for each in threading.enumerate()]
    assert threads.count("exporter-environment") == 1
    (node.path / "proc/100/environ").write_text("SLURM_JOB_NAME=late\0")
    is_over.set()

    def is_late() -> bool:
        collector.sources.jobs._value = None
        return any('name="late"' in name for name in collected(collector, node))

    until(is_late)


def test_a_job_of_version_1(node: TreeNode) -> None:
    add_v1(node, 7, 100)
    found = collected(make(JobCollector, job_info="none"), node)
    assert found['ccagent_job_info{account="",jobid="7",name="",partition="",user="ada"}'] == 1
    assert found['ccagent_job_cpu_seconds_total{jobid="7"}'] == 2.0
    assert found['ccagent_job_cpu_user_seconds_total{jobid="7"}'] == 1.5
    assert found['ccagent_job_memory_swap_bytes{jobid="7"}'] == 10 * MB
    assert found['ccagent_job_cpus{jobid="7"}'] == 2
    assert found['ccagent_job_processes{jobid="7"}'] == 1


def test_series_end_with_their_job_and_nothing_is_kept(node: TreeNode) -> None:
    collector = make(JobCollector)
    add_v2(node, 1, 100)
    collected(collector, node)
    for path in sorted((node.path / SCOPE).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    collector.sources.jobs._value = None
    assert collected(collector, node) == {"ccagent_jobs": 0, "ccagent_jobs_left_out": 0}


def test_a_cap_drops_whole_jobs_the_newest_first_and_counts_them(node: TreeNode) -> None:
    for job in (3, 1, 2):
        add_v2(node, job, 100 + job)
    found = collected(make(JobCollector, max_jobs=2), node)
    assert (found["ccagent_jobs"], found["ccagent_jobs_left_out"]) == (3, 1)
    ids = {name.partition('jobid="')[2].partition('"')[0] for name in found if "jobid" in name}
    assert ids == {"1", "2"}


@pytest.mark.slow
def test_each_hwthread_may_have_a_job_and_what_is_cut_is_said(
    node: TreeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 300)
    for job in range(1, 352):
        add_v2(node, job, 1000 + job)
    found = collected(make(JobCollector), node)
    assert (found["ccagent_jobs"], found["ccagent_jobs_left_out"]) == (351, 1)
    assert "exporter: 1 of 351 jobs have no series: max-jobs is 350" in caplog.text


def test_the_names_of_cgroup_exporter(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    found = collected(make(CgroupExporterCollector), node)
    group = 'cgroup="/system.slice/slurmstepd.scope/job_12"'
    assert found[f"cgroup_cpu_user_seconds{{{group}}}"] == 1.5
    assert found[f"cgroup_cpu_total_seconds{{{group}}}"] == 2.0
    assert found[f"cgroup_cpus{{{group}}}"] == 3
    assert found[f'cgroup_cpu_info{{{group},cpus="0,1,4"}}'] == 1
    assert found[f"cgroup_memory_rss_bytes{{{group}}}"] == 90 * MB + 4096
    assert found[f"cgroup_memory_total_bytes{{{group}}}"] == 200 * MB
    assert found[f"cgroup_memory_fail_count{{{group}}}"] == 3
    assert found[f"cgroup_memsw_total_bytes{{{group}}}"] == 2.0**64
    assert found[f'cgroup_info{{{group},jobid="12",uid="1001",username="ada"}}'] == 1
    assert found[f'cgroup_cpu_pressure_seconds_total{{{group},type="full"}}'] == 0.00001


def test_the_names_of_cgroup_exporter_on_version_1(node: TreeNode) -> None:
    add_v1(node, 7, 100)
    found = collected(make(CgroupExporterCollector), node)
    group = 'cgroup="/slurm/uid_1001/job_7"'
    assert found[f"cgroup_memory_rss_bytes{{{group}}}"] == 20 * MB
    assert found[f"cgroup_memory_fail_count{{{group}}}"] == 3
    assert found[f'cgroup_cpu_info{{{group},cpus="2,3"}}'] == 1
    assert found[f"cgroup_memsw_used_bytes{{{group}}}"] == 110 * MB


def test_a_job_of_version_2_in_a_slice_of_the_site(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    top = node.path / "sys/fs/cgroup"
    (top / "system.slice").rename(top / "jobs.slice")
    found = collected(make(CgroupExporterCollector), node)
    group = 'cgroup="/jobs.slice/slurmstepd.scope/job_12"'
    assert found[f"cgroup_memory_rss_bytes{{{group}}}"] == 90 * MB + 4096
    assert found[f"cgroup_memsw_total_bytes{{{group}}}"] == 2.0**64
    used = collected(make(JobCollector), node)['ccagent_job_memory_swap_bytes{jobid="12"}']
    assert used == 8192


def test_the_names_of_ceems(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    found = collected(make(CeemsCollector), node)
    unit = 'cgrouphostname="",hostname="c1-1",manager="slurm",uuid="12"'
    assert found['ceems_compute_units{hostname="c1-1",manager="slurm"}'] == 1
    assert found[f"ceems_compute_unit_cpu_user_seconds_total{{{unit}}}"] == 1.5
    assert found[f"ceems_compute_unit_memory_psi_seconds{{{unit}}}"] == 0.00002
    assert found[f"ceems_compute_unit_memory_rss_bytes{{{unit}}}"] == 20 * MB
    read = 'ceems_compute_unit_blkio_read_total_requests{cgrouphostname="",device="8:0",'
    assert found[read + 'hostname="c1-1",manager="slurm",uuid="12"}'] == 1


def test_a_job_without_constrained_cores_may_use_those_of_the_node(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    write(node.path, f"{SCOPE}/job_12/cpuset.cpus", "\n")
    write(node.path, f"{SCOPE}/job_12/cpuset.cpus.effective", "0-7\n")
    assert collected(make(JobCollector), node)['ccagent_job_cpus{jobid="12"}'] == 8
    found = collected(make(SlurmJobExporterCollector), node)
    assert len([name for name in found if name.startswith("slurm_job_core_usage_total")]) == 8


def test_units_of_ceems_name_the_slurmd_of_several(node: TreeNode) -> None:
    add_v2(node, 12, 100)
    (node.path / SCOPE).rename(node.path / "sys/fs/cgroup/system.slice/n2_slurmstepd.scope")
    found = collected(make(CeemsCollector), node)
    unit = 'cgrouphostname="n2",hostname="c1-1",manager="slurm",uuid="12"'
    assert found[f"ceems_compute_unit_cpus{{{unit}}}"] == 3


@pytest.mark.parametrize(("swap", "expected"), [(0, 8000), (500, 500)])
def test_a_unit_of_ceems_without_a_limit(node: TreeNode, swap: int, expected: int) -> None:
    add_v2(node, 12, 100)
    write(node.path, f"{SCOPE}/job_12/memory.max", "max\n")
    node.write("meminfo", f"MemTotal: 8000 kB\nMemFree: 1 kB\nSwapTotal: {swap} kB\n")
    found = collected(make(CeemsCollector), node)
    unit = 'cgrouphostname="",hostname="c1-1",manager="slurm",uuid="12"'
    assert found[f"ceems_compute_unit_memory_total_bytes{{{unit}}}"] == 8000 * 1024
    assert found[f"ceems_compute_unit_memsw_total_bytes{{{unit}}}"] == expected * 1024


@pytest.mark.parametrize("kind", [CgroupExporterCollector, CeemsCollector])
def test_a_node_without_slurm(
    node: TreeNode, kind: type[CgroupExporterCollector | CeemsCollector]
) -> None:
    with pytest.raises(NotHereError):
        collected(make(kind), node)


def test_what_a_user_puts_into_the_environment_is_cut_and_kept_to_one_line(
    node: TreeNode,
) -> None:
    add_v2(node, 5, 100, "SLURM_JOB_NAME=" + "x" * 10_000 + "\0SLURM_JOB_ACCOUNT=\x00\0")
    found = collected(make(JobCollector), node)
    (info,) = [name for name in found if name.startswith("ccagent_job_info")]
    assert len(info) < 300
