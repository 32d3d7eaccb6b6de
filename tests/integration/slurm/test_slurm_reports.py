"""`ccagent job` and `ccagent top` on a real Slurm: jobs of three kinds get their verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.metric_store import RunningStore
from tests.support.running import until
from tests.support.slurm_cluster import SlurmCluster

NODE = "c1-1"
SECONDS = 12
SPIN = "while :; do :; done"
HOG = "tail /dev/zero"  # keeps what it reads
LIMITS = "[thresholds]\nmin-runtime = '5s'\nserial-from = 0.01\ncoverage = 30\n"
"""A busy machine gives a job less than a core, and an agent less than a sample a second."""
AGENT = """
hostname = "c1-1"
cluster = "peers"
status-socket = "{directory}/status.sock"
[agents.metrics]
every = "1s"
on-startup = true
readers = ["cgroup-jobs"]
[sinks.store]
url = "http://127.0.0.1:{port}/api/write/?cluster=peers"
format = "line"
"""


def ccagent(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ccagent", *arguments], capture_output=True, text=True,
        check=False, timeout=90, **more,
    )  # fmt: skip


class Measured(NamedTuple):
    """Jobs that have run beside an agent. while_running: the screen of `top`, as JSON."""

    store: RunningStore
    views: Path
    jobs: dict[str, int]
    while_running: Any
    local: Any

    def report(self, name: str) -> Any:
        found = ccagent(
            "job", str(self.jobs[name]), "--store", f"http://127.0.0.1:{self.store.port}",
            "--config", str(self.views), "--json",
        )  # fmt: skip
        assert found.returncode in {0, 3}, found.stderr
        return json.loads(found.stdout)


@pytest.fixture(scope="module")
def measured(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    if slurm.tracking != "cgroup":
        pytest.fail("the controllers of version 1 are needed")
    directory = tmp_path_factory.mktemp("reports")
    views = directory / "views.toml"
    views.write_text(LIMITS)
    with RunningStore(directory / "store", "--frequency", "1s") as store:
        configuration = directory / "ccagent.toml"
        configuration.write_text(AGENT.format(directory=directory, port=store.port))
        agent = subprocess.Popen(
            [sys.executable, "-m", "ccagent", "run", "--config", str(configuration)]
        )
        try:
            on = ("-w", NODE, "-o", "/dev/null", "-t", "10")
            jobs = {
                "serial": slurm.submit("alice", *on, "-c2", f"--wrap={SPIN}"),
                "idle": slurm.submit("bob", *on, "-J", "idle\x1b[2J", "--wrap=sleep 600"),
                "hog": slurm.submit("alice", *on, "--mem=60M", f"--wrap={HOG}"),
            }
            slurm.wait_for(jobs["serial"], {"RUNNING"})
            slurm.wait_for(jobs["idle"], {"RUNNING"})
            time.sleep(SECONDS)
            top = ccagent("top", "--json")
            local = ccagent("job", str(jobs["serial"]), "--local", "--json", "--config", str(views))
            for job in jobs.values():
                slurm.run("scancel", str(job))
            for job in jobs.values():
                slurm.wait_for(job)
            _send_jobs(slurm, store, jobs.values())
            yield Measured(store, views, jobs, json.loads(top.stdout), json.loads(local.stdout))
        finally:
            agent.terminate()
            assert agent.wait(30) == 0


def _send_jobs(slurm: SlurmCluster, store: RunningStore, jobs: Iterable[int]) -> None:
    """Send Slurm's jobs to the store until it knows the ends of these, which take seconds."""
    path = f"{slurm.programs}:{os.environ['PATH']}"

    def is_known() -> bool:
        listed = ccagent(
            "jobs", "--no-config", "--cluster", "peers", env=os.environ | {"PATH": path}
        )
        for envelope in listed.stdout.splitlines():
            assert store.ask("POST", "/api/jobs/", envelope).status == 200
        found = [store.ask("GET", f"/api/job/?job={job}").json() for job in jobs]
        return all(one and one[0]["stop"] for one in found)

    until(is_known, 60)


def rules(report: Any) -> dict[str, str]:
    return {one["rule"]: one["level"] for one in report["findings"]}


def test_one_core_of_two_is_serial(measured: Measured) -> None:
    report = measured.report("serial")
    assert rules(report) == {"serial": "BAD"}
    assert 1 < report["efficiency"]["cpu"]["percent"] <= 50.5
    assert report["job"]["nodes"][0]["cores"] == 2
    assert (report["job"]["user"], report["job"]["time_limit"]) == ("alice", 600)


def test_an_idle_job_did_nothing(measured: Measured) -> None:
    report = measured.report("idle")
    assert rules(report) == {"cpu-zero": "BAD"}
    assert report["job"]["name"] == "idle\x1b[2J"


def test_a_memory_hog_met_its_limit(measured: Measured) -> None:
    report = measured.report("hog")
    assert rules(report)["mem-limit"] == "BAD"
    assert report["job"]["state"] == "OUT_OF_MEMORY"
    assert "--mem=100M" in report["findings"][0]["text"]


def test_top_shows_the_jobs_while_they_run(measured: Measured) -> None:
    found = {job["job"]: job for job in measured.while_running["jobs"]}
    serial = found[measured.jobs["serial"]]
    assert serial["cores"] > 0.01
    assert serial["processes"] >= 1
    assert found[measured.jobs["idle"]]["cores"] < 0.01


def test_a_running_job_is_known_on_its_node(measured: Measured) -> None:
    found = measured.local
    assert found["job"]["state"] == "RUNNING"
    assert found["job"]["nodes"][0]["cpu_seconds"] > 0.1
