"""`ccagent job` and `ccagent top` on a real Slurm: ailing jobs get their verdicts and causes.

Each node has an agent of its own, which sees the control groups of this node alone. The card of
gpu-1 is a stand-in; the slow mount is bindfs with a limit of its rate. Groups of version 1 have no
pressure: a job that waits for memory is in tests/data/jobs alone.
"""

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

from tests.integration.slurm.test_slurm_gpus import CARDS
from tests.support.gpu_libraries import Libraries
from tests.support.metric_store import RunningStore
from tests.support.running import until
from tests.support.slurm_cluster import NODES, SlurmCluster

SECONDS = 12
SPIN = "while :; do :; done"
HOG = "tail /dev/zero"  # keeps what it reads
LIMITS = """
[thresholds]
min-runtime = '5s'
serial-from = 0.01
coverage = 30
cpu-zero = 0.2
"""
"""A busy machine gives a job less than a core, and an agent less than a sample a second."""
AGENT = """
hostname = "{node}"
cluster = "peers"
status-socket = "{directory}/{node}.sock"
[agents.metrics]
every = "1s"
on-startup = true
readers = ["cgroup-jobs"]
{more}
[sinks.store]
url = "http://127.0.0.1:{port}/api/write/?cluster=peers"
format = "line"
"""
CARD_AGENT = """
[agents.sample]
every = "1s"
on-startup = true
extras = ["allocated-gpus"]
scontrol = "{programs}/scontrol"
squeue = "{programs}/squeue"
"""
VIEW = """
for name in {others}; do
    for group in /sys/fs/cgroup/*/slurm_$name; do mount -t tmpfs none "$group"; done
done
mount -t tmpfs none /sys/bus
mkdir -p /sys/bus/pci/drivers/nvidia
for card in {cards}; do touch /sys/bus/pci/drivers/nvidia/$card; done
exec {python} -m ccagent run --config {configuration}
"""
"""What an agent runs in: without the groups of other nodes, with the cards of its own."""


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


def start_agent(
    node: str, slurm: SlurmCluster, port: int, directory: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    has_cards = node == "gpu-1"
    configuration = directory / f"{node}.toml"
    more = CARD_AGENT.format(programs=slurm.programs) if has_cards else ""
    configuration.write_text(AGENT.format(node=node, directory=directory, port=port, more=more))
    view = VIEW.format(
        others=" ".join(other for other in NODES if other != node), python=sys.executable,
        cards="0000:00:00.0 0000:01:00.0" if has_cards else "", configuration=configuration,
    )  # fmt: skip
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-euc", view], env=os.environ | environment
    )


@pytest.fixture(scope="module")
def measured(
    slurm: SlurmCluster, gpu_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Measured]:
    if slurm.tracking != "cgroup":
        pytest.fail("the controllers of version 1 are needed")
    directory = tmp_path_factory.mktemp("reports")
    views = directory / "views.toml"
    views.write_text(LIMITS)
    libraries = Libraries(gpu_libraries, directory / "scenario")
    libraries.play(CARDS)
    with RunningStore(directory / "store", "--frequency", "1s") as store:
        agents = [
            start_agent(node, slurm, store.port, directory, libraries.environment)
            for node in ("c1-1", "c1-2", "gpu-1")
        ]
        try:
            slow = mount_slowly(slurm)
            on = ("-o", "/dev/null", "-t", "10")
            # Jobs of other tests may hold three cores of eight.
            first, second, both = (("-w", nodes, *on) for nodes in ("c1-1", "c1-2", "c1-[1-2]"))
            read = f"while :; do dd if={slow}/data of=/dev/null bs=64k iflag=direct; done"
            jobs = {
                "cut": slurm.submit("alice", "-w", "c1-2", "-t1", f"--wrap={SPIN}"),
                "serial": slurm.submit("alice", *first, "-c4", f"--wrap={SPIN}"),
                "idle": slurm.submit("bob", *second, "-J", "idle\x1b[2J", "--wrap=sleep 600"),
                "hog": slurm.submit("alice", *second, "--mem=60M", f"--wrap={HOG}"),
                "spread": slurm.submit("bob", *both, "-N2", "-n2", f"--wrap={SPIN}"),
                "slow": slurm.submit("alice", *second, f"--wrap={read}"),
                "card": slurm.submit(
                    "bob", "-p", "accel", "--gres=gpu:a100:1", *on, f"--wrap={SPIN}"
                ),
            }
            for name, job in jobs.items():
                slurm.wait_for(job, {"OUT_OF_MEMORY"} if name == "hog" else {"RUNNING"})
            # A limit is whole minutes; Slurm takes an end at any time, and looks twice a minute.
            end = f"EndTime=now+{SECONDS}seconds"
            slurm.run("scontrol", "update", f"JobId={jobs['cut']}", end)
            time.sleep(SECONDS)
            top = ccagent("top", "--json")
            local = ccagent("job", str(jobs["serial"]), "--local", "--json", "--config", str(views))
            for name, job in jobs.items():
                if name != "cut":
                    slurm.run("scancel", str(job))
            for job in jobs.values():
                slurm.wait_for(job)
            _send_jobs(slurm, store, jobs.values())
            yield Measured(store, views, jobs, json.loads(top.stdout), json.loads(local.stdout))
        finally:
            for agent in agents:
                agent.terminate()
            assert [agent.wait(30) for agent in agents] == [0, 0, 0]


def mount_slowly(slurm: SlurmCluster) -> Path:
    """Mount a directory with a file where the jobs run, at 100 kB/s. The mount ends with Slurm."""
    source, slow = slurm.directory / "source", slurm.directory / "slow"
    for one in (source, slow):
        one.mkdir(mode=0o755)
    (source / "data").write_bytes(bytes(1 << 20))
    options = ("--read-rate=100k", "-o", "allow_other,direct_io")
    slurm.run("bindfs", *options, str(source), str(slow))
    return slow


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


def said(report: Any) -> str:
    """Return the texts of all findings."""
    return "\n".join(one["text"] for one in report["findings"])


def test_one_core_of_four_is_serial(measured: Measured) -> None:
    report = measured.report("serial")
    assert rules(report) == {"serial": "BAD"}
    assert "Ask for 1 core (--cpus-per-task=1): in 95 % of the time" in said(report)
    assert 1 < report["efficiency"]["cpu"]["percent"] <= 25.5
    assert report["job"]["nodes"][0]["cores"] == 4
    assert (report["job"]["user"], report["job"]["time_limit"]) == ("alice", 600)


def test_one_of_two_nodes_did_nothing(measured: Measured) -> None:
    report = measured.report("spread")
    assert rules(report) == {"idle-nodes": "BAD"}
    assert "1 node of 2 did nothing (c1-2)" in said(report)
    assert "Ask for 1 node (--nodes=1), which frees" in said(report)


def test_a_card_that_no_process_uses(measured: Measured) -> None:
    report = measured.report("card")
    assert rules(report) == {"gpu-idle": "BAD"}
    assert "GPU 0 wasn't used: 0 % on average" in said(report)
    assert "leave out --gpus" in said(report)


def test_a_job_that_worked_up_to_its_time_limit(measured: Measured) -> None:
    report = measured.report("cut")
    assert report["job"]["state"] == "TIMEOUT"
    assert rules(report)["time"] == "BAD"
    assert ", or write checkpoints" in said(report)


def test_a_slow_mount_says_what_to_collect(measured: Measured) -> None:
    report = measured.report("slow")
    assert set(rules(report)) <= {"cpu-low", "cpu-zero"}
    assert rules(report)
    assert "`ccagent kernel load --io-time` and the agent jobio measure files" in said(report)


def test_an_idle_job_did_nothing(measured: Measured) -> None:
    report = measured.report("idle")
    assert rules(report) == {"cpu-zero": "BAD"}
    assert report["job"]["name"] == "idle\x1b[2J"


def test_a_memory_hog_met_its_limit(measured: Measured) -> None:
    report = measured.report("hog")
    assert rules(report)["mem-limit"] == "BAD"
    assert report["job"]["state"] == "OUT_OF_MEMORY"
    assert "--mem=100M" in said(report)


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
