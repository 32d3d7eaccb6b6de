"""energy: jobs in control groups of the kernel's, whose CPU time is exact, and a composed RAPL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import SYSTEM, EnergyDomain
from ccagent.agents.energy.meter import EnergyMeter
from ccagent.machine.node import Node
from tests.support.energy_tree import make_settings
from tests.support.kernel_programs import JobGroup, hierarchy

ZONE = "sys/class/powercap/intel-rapl:0"
BUSY = "i=0; while [ $i -lt {} ]; do i=$((i+1)); done"
PATHS = {"v1": "slurm/uid_0/job_{}", "v2": "system.slice/slurmstepd.scope/job_{}"}
USAGE = {"v1": "cpuacct.usage", "v2": "cpu.stat"}
BUSY_JOB, LESS_BUSY_JOB, IDLE_JOB = 4_000_007, 4_000_008, 4_000_009
"""Numbers that no other job of this machine has: there may be a Slurm beside these tests."""


def compose(root: Path, mounted: str, version: str) -> Node:
    """Return a node with this machine's cpus, these control groups, and one package."""
    for name in ("proc", "sys/devices/system"):
        (root / name).mkdir(parents=True)
    for name in ("proc/stat", "proc/meminfo", "sys/devices/system/cpu"):
        (root / name).symlink_to(f"/{name}")
    groups = root / "sys/fs/cgroup"
    groups.parent.mkdir(parents=True)
    if version == "v1":
        groups.mkdir()
        (groups / "cpuacct").symlink_to(mounted)
    else:
        groups.symlink_to(mounted)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", str(10**15))):
        (root / ZONE).mkdir(parents=True, exist_ok=True)
        (root / ZONE / name).write_text(f"{text}\n")
    return Node(root=str(root), hostname="n1", cluster="fox")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_active_energy_follows_the_cpu_time_that_the_kernel_counts(
    version: str, tmp_path: Path
) -> None:
    with hierarchy(version) as mounted:
        jobs = {
            number: JobGroup(mounted, PATHS[version].format(number), USAGE[version])
            for number in (BUSY_JOB, LESS_BUSY_JOB, IDLE_JOB)
        }
        try:
            node = compose(tmp_path / "node", mounted, version)
            (tmp_path / "node" / ZONE / "energy_uj").write_text("1000000\n")
            jobs[LESS_BUSY_JOB].run(BUSY.format(50_000))
            meter = EnergyMeter(make_settings(**{"idle-package": 0.001}))
            meter.open(node)
            before = {number: job.runtime() for number, job in jobs.items()}
            jobs[BUSY_JOB].run(BUSY.format(200_000))
            jobs[LESS_BUSY_JOB].run(BUSY.format(100_000))
            (tmp_path / "node" / ZONE / "energy_uj").write_text("51000000\n")
            tick = meter.tick(node)
            spent = {number: job.runtime() - before[number] for number, job in jobs.items()}
        finally:
            for job in jobs.values():
                job.remove()
    assert tick.errors == []
    split = tick.totals.split[EnergyDomain("package", 0)]
    assert sum(split.values()) == 50_000_000
    active = {number: meter.ledger.jobs[number].of("cpu", "active") for number in jobs}
    assert active[IDLE_JOB] == 0
    assert active[BUSY_JOB] > active[LESS_BUSY_JOB] > 0
    assert split[SYSTEM] >= 0
    # In microseconds, in which version 2 tells them.
    assert active[BUSY_JOB] * (spent[LESS_BUSY_JOB] // 1000) == pytest.approx(
        active[LESS_BUSY_JOB] * (spent[BUSY_JOB] // 1000), rel=1e-4
    )
    meter.tick(node)
    assert jobs.keys() <= {each.account.job for each in meter.take_ended(node)}
    meter.close()
