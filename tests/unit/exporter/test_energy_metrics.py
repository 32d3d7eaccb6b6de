"""Energy of jobs and of the node, of the agent that runs in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError
from ccagent.exporter.own_metrics import EnergyCollector
from ccagent.machine.job_energy import EnergyInterval, JobEnergy, NodeEnergy, publish_energy
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    publish_energy(None)


def publish(jobs: int) -> None:
    energy = JobEnergy(
        {("cpu", "active"): 600_500_000, ("cpu", "idle"): 400_000_000}, 100_000_000, 0.75,
        EnergyInterval(900.0, 1200.0), EnergyInterval(10.0, 50.0), is_idle_known=True,
    )  # fmt: skip
    unknown = energy._replace(power=None, is_idle_known=False)
    publish_energy(
        NodeEnergy(
            {n: energy if n == 7 else unknown for n in range(7, 7 + jobs)},
            {"cpu": 1_500_000_000, "other": 10_000_000}, {"cpu": 1_000_000},
            {"cpu": 498_500_000, "other": 10_000_000}, 151_000_000,
        )
    )  # fmt: skip


def test_energy_of_jobs_and_of_the_node(tmp_path: Path) -> None:
    publish(jobs=2)
    assert collected(make(EnergyCollector), TreeNode(tmp_path)) == {
        'ccagent_job_energy_joules_total{jobid="7",part="cpu",share="active"}': 600.5,
        'ccagent_job_energy_joules_total{jobid="7",part="cpu",share="idle"}': 400.0,
        'ccagent_job_energy_joules_total{jobid="8",part="cpu",share="active"}': 600.5,
        'ccagent_job_energy_joules_total{jobid="8",part="cpu",share="idle"}': 400.0,
        'ccagent_job_power_watts{jobid="7"}': 100.0,
        'ccagent_job_energy_coverage_ratio{jobid="7"}': 0.75,
        'ccagent_job_energy_coverage_ratio{jobid="8"}': 0.75,
        **{
            f'ccagent_job_{name}_joules{{jobid="{job}"}}': joules
            for job in (7, 8)
            for name, joules in (
                ("energy_least", 900.0),
                ("energy_most", 1200.0),
                ("memory_energy_least", 10.0),
                ("memory_energy_most", 50.0),
            )
        },
        'ccagent_job_energy_idle_known{jobid="7"}': 1.0,
        'ccagent_job_energy_idle_known{jobid="8"}': 0.0,
        'ccagent_node_energy_joules_total{part="cpu"}': 1500.0,
        'ccagent_node_energy_joules_total{part="other"}': 10.0,
        'ccagent_node_energy_system_joules_total{part="cpu"}': 1.0,
        'ccagent_node_energy_unallocated_joules_total{part="cpu"}': 498.5,
        'ccagent_node_energy_unallocated_joules_total{part="other"}': 10.0,
        "ccagent_node_power_watts": 151.0,
    }


def test_beyond_the_limit_jobs_have_no_series(tmp_path: Path) -> None:
    publish(jobs=5)
    found = collected(make(EnergyCollector, max_jobs=2), TreeNode(tmp_path))
    assert sum("share=" in series for series in found) == 4


def test_without_the_agent_it_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="agent energy"):
        list(make(EnergyCollector).collect(TreeNode(tmp_path)))
