"""Prometheus endpoint: jobs, queue, nodes and partitions of a real Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.exposition import values
from tests.support.running import CCAGENT, until
from tests.support.slurm_cluster import SlurmCluster

_PROGRAMS = ("squeue", "sinfo", "sdiag", "sshare", "scontrol")


def scrape(slurm: SlurmCluster, directory: Path, names: str) -> dict[str, float]:
    """Return the values of one scrape by series."""
    file = directory / "ccagent.toml"
    programs = slurm.programs
    keys = (f'{name} = "{programs}/{name}"\n' for name in _PROGRAMS)
    file.write_text("[exporter]\n" + "".join(keys))
    done = subprocess.run(
        [*CCAGENT, "metrics", "--once", "--config", str(file), "--format", "prometheus",
         "--names", names], capture_output=True, check=True,
    )  # fmt: skip
    return values(done.stdout.decode())


@pytest.fixture
def job(slurm: SlurmCluster) -> Iterator[int]:
    """A job of bob's in the account chem that computes."""
    number = slurm.submit(
        "bob", "-A", "chem", "-J", "busy", "-p", "bigmem", "-n2", "--mem=60",
        "--wrap=timeout 600 sh -c 'while :; do :; done'",
    )  # fmt: skip
    slurm.wait_for(number, {"RUNNING"})
    yield number
    slurm.run("scancel", str(number))


@pytest.mark.usefixtures("job")
def test_queue_nodes_and_partitions(slurm: SlurmCluster, tmp_path: Path) -> None:
    found = scrape(slurm, tmp_path, "slurm")
    assert found["slurm_queue_running"] >= 1
    assert found["slurm_cpus_total"] >= 32
    assert found["slurm_cpus_alloc"] >= 2
    assert found['slurm_partition_cpus_total{partition="bigmem"}'] == 8
    assert found['slurm_partition_cpus_allocated{partition="bigmem"}'] >= 2
    assert found['slurm_account_jobs_running{account="chem"}'] >= 1
    assert found['slurm_account_cpus_running{account="chem"}'] >= 2
    assert found["slurm_gpus_total"] == 2
    assert found["slurm_gpus_alloc"] + found["slurm_gpus_idle"] == 2
    assert found['slurm_partition_jobs_running{partition="bigmem"}'] >= 1
    own = [name for name in found if name.startswith('slurm_node_mem_total{node="bigmem1"')]
    assert [found[name] for name in own] == [8000]
    assert found["slurm_nodes_mix"] >= 1
    assert found['ccagent_scrape_collector_success{collector="slurm"}'] == 1


@pytest.fixture
def reservation(slurm: SlurmCluster) -> Iterator[str]:
    """A reservation of two nodes without a slurmd, where no other test has jobs."""
    slurm.run(
        "scontrol", "create", "reservation", "ReservationName=repair", "StartTime=now",
        "Duration=60", "Users=root", "Nodes=c2-[01-02]", "Flags=MAINT",
    )  # fmt: skip
    yield "repair"
    slurm.run("scontrol", "delete", "ReservationName=repair")


@pytest.mark.usefixtures("job")
def test_scheduler_shares_licences_and_reservations(
    slurm: SlurmCluster, reservation: str, tmp_path: Path
) -> None:
    def count(label: str) -> int:
        line = next(each for each in slurm.run("sdiag").splitlines() if label in each)
        return int(line.rpartition(":")[2])

    labels = {"jobs_submitted": "Jobs submitted", "jobs_started": "Jobs started"}
    before = {name: count(label) for name, label in labels.items()}
    found = scrape(slurm, tmp_path, "slurm")
    for name, label in labels.items():
        assert 1 <= before[name] <= found[f"slurm_scheduler_{name}"] <= count(label)
    assert found["slurm_scheduler_threads"] >= 1
    assert found["slurm_scheduler_mean_cycle"] > 0
    assert found['slurm_rpc_stats{operation="REQUEST_SUBMIT_BATCH_JOB"}'] >= 1
    assert found['slurm_user_rpc_stats{user="bob"}'] >= 1

    shares = slurm.run("sshare", "-aPn", "--format=Account,User,RawShares,NormShares").split("\n")
    (own,) = (line.split("|")[2:] for line in shares if "chem|bob|" in line)
    user = '{account="chem",user="bob"}'
    assert found[f"slurm_user_fairshare_raw_shares{user}"] == float(own[0])
    assert found[f"slurm_user_fairshare_norm_shares{user}"] == float(own[1])
    assert 0 <= found[f"slurm_user_fairshare{user}"] <= 1
    assert found['slurm_account_fairshare_norm_shares{account="chem"}'] > 0

    assert found['slurm_license_total{license="matlab"}'] == 4
    assert found['slurm_license_free{license="matlab"}'] == 4
    assert found[f'slurm_reservation_node_count{{reservation_name="{reservation}"}}'] == 2
    begin, end = (
        found[f'slurm_reservation_{each}_time_seconds{{reservation_name="{reservation}"}}']
        for each in ("start", "end")
    )
    assert end - begin == 3600
    # A node whose slurmd has never answered is `UNKNOWN` at first, then `DOWN`.
    names = (
        f'slurm_reservation_nodes_{each}{{reservation="{reservation}"}}'
        for each in ("other", "down")
    )
    assert sum(found[name] for name in names) == 2
    assert found[f'slurm_reservation_nodes_healthy{{reservation="{reservation}"}}'] == 0


def test_series_of_a_job_grow_and_end_with_it(
    slurm: SlurmCluster, job: int, tmp_path: Path
) -> None:
    if slurm.tracking != "cgroup":
        pytest.skip("Slurm makes no control groups here")
    name = f'ccagent_job_cpu_seconds_total{{jobid="{job}"}}'
    first = scrape(slurm, tmp_path, "ccagent,cgroup_exporter")[name]
    second: dict[str, float] = {}

    def has_grown() -> bool:
        second.update(scrape(slurm, tmp_path, "ccagent,cgroup_exporter"))
        return second[name] > first and second[f'ccagent_job_processes{{jobid="{job}"}}'] >= 2

    until(has_grown)
    (info,) = [
        each for each in second if each.startswith("ccagent_job_info") and f'"{job}"' in each
    ]
    assert 'account="chem"' in info
    assert 'name="busy"' in info
    assert 'partition="bigmem"' in info
    assert second[f'ccagent_job_memory_limit_bytes{{jobid="{job}"}}'] >= 60 << 20
    user = [each for each in second if each.startswith("cgroup_info") and f'jobid="{job}"' in each]
    assert len(user) == 1
    assert 'uid="5002"' in user[0]
    slurm.run("scancel", str(job))
    slurm.wait_for(job)
    deadline = time.monotonic() + 60
    while found := [
        each
        for each in scrape(slurm, tmp_path, "ccagent,cgroup_exporter")
        if f'jobid="{job}"' in each
    ]:
        assert time.monotonic() < deadline, found
