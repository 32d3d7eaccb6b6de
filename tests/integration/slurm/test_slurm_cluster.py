"""The Slurm that other tests use: it runs, its jobs end as they should, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import slurm_cluster
from tests.support.paths import ROOT
from tests.support.running import until
from tests.support.slurm_cluster import LONG_NAME, NODES, SlurmCluster, missing
from tests.support.slurm_scenarios import ODD_NAMES, RESERVATION, Jobs

UP_FOR_EVER = """
import time
from tests.support.slurm_cluster import SlurmCluster
cluster = SlurmCluster("linuxproc")
cluster.up()
cluster.submit("alice", "--wrap=sleep 600")
print(cluster.directory, flush=True)
time.sleep(600)
"""


def started_from_outside(slurm: SlurmCluster, program: str, *arguments: str) -> str:
    """Run a program as an agent does: in an environment that knows nothing of the cluster."""
    command = [str(slurm.programs / program), *arguments]
    done = subprocess.run(command, env={}, capture_output=True, timeout=90, check=True)
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape")


def control_groups() -> str:
    """Return the control groups of all processes of this machine."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_text())
    return "\n".join(found)


def processes_naming(text: str) -> list[str]:
    """Return the command lines on this machine in which `text` occurs."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


def test_the_nodes_answer(slurm: SlurmCluster) -> None:
    output = started_from_outside(slurm, "sinfo", "-ahN", "-o", "%N %T")
    states = dict(line.split() for line in output.splitlines())
    assert states.keys() > set(NODES)
    assert {states[node] for node in NODES} <= {"idle", "mixed", "allocated", "reserved"}


def test_jobs_run_as_their_users(slurm: SlurmCluster) -> None:
    job = slurm.submit(LONG_NAME, "-o", "who", "--wrap=id -un; hostname")
    slurm.wait_for(job, {"COMPLETED"})
    assert (slurm.home(LONG_NAME) / "who").read_text().split()[0] == LONG_NAME
    assert slurm.run("sacct", "-nXP", "-j", str(job), "-o", "User").strip() == LONG_NAME


def test_jobs_end_as_their_scenarios_say(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait()
    assert slurm_jobs.unlike_expected() == {}
    assert slurm_jobs.ids.keys() == slurm_jobs.expected.keys()


def test_sacct_from_outside_knows_the_jobs(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("plain", "name: newline", "reservation")
    ids = slurm_jobs.ids
    output = started_from_outside(slurm, "sacct", "-nXP", "-j", str(ids["plain"]))
    assert output == f"{ids['plain']}|plain|normal|physics|1|COMPLETED|0:0\n"
    arguments = ["-nXP", "-j", str(ids["reservation"]), "-o", "Reservation"]
    assert started_from_outside(slurm, "sacct", *arguments) == f"{RESERVATION}\n"
    arguments = ["-nXP", "-j", str(ids["name: newline"]), "-o", "JobName"]
    assert started_from_outside(slurm, "sacct", *arguments) == "new\nline\n"


@pytest.mark.parametrize("name", ["newline", "escape", "not UTF-8", "unit separator", "bar"])
def test_slurmctld_keeps_odd_names(slurm: SlurmCluster, slurm_jobs: Jobs, name: str) -> None:
    job = slurm_jobs.ids[f"name: {name}"]
    output = started_from_outside(slurm, "scontrol", "-o", "show", "job", str(job))
    assert f"JobId={job} JobName={ODD_NAMES[name]} UserId=bob(5002)" in output


def test_jobs_that_wait_are_in_the_queue(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait()  # until the scheduler has looked at all
    output = started_from_outside(slurm, "squeue", "-ah", "-o", "%A %T %r")
    queue = {int(line.split()[0]): line.split(" ", 1)[1] for line in output.splitlines()}
    ids = slurm_jobs.ids
    assert queue[ids["held"]] == "PENDING JobHeldUser"
    assert queue[ids["held array"]] == "PENDING JobHeldUser"
    assert queue[ids["held by root"]] == "PENDING JobHeldAdmin"
    assert queue[ids["dependent"]] == "PENDING Dependency"
    assert queue[ids["later"]] == "PENDING BeginTime"
    assert queue[ids["special exit"]].startswith("SPECIAL_EXIT")


def test_processes_of_a_job_are_seen_from_outside(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    job = slurm_jobs.ids["running"]
    until(lambda: processes_naming(f"slurmstepd: [{job}.0]"))
    if slurm.tracking == "cgroup":
        group = re.compile(rf"/slurm_c1-[12]/uid_5001/job_{job}/step_0")
        until(lambda: group.search(control_groups()))


@pytest.mark.usefixtures("slurm")  # where this one can run, so can another
def test_nothing_stays_of_a_cluster_whose_tests_were_killed() -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", UP_FOR_EVER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert tests.stdout is not None
    with tests:
        directory = tests.stdout.readline().strip()
        assert directory, "no cluster"
        assert processes_naming(directory)
        os.kill(tests.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    # What removes the directory names it too, and ends a moment later.
    while os.path.exists(directory) or processes_naming(directory):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not os.path.exists(directory)
    assert processes_naming(directory) == []


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "_PROGRAMS", ("sh", "slurm-of-tomorrow"))
    assert missing().startswith("no slurm-of-tomorrow: apt-get install ")
    monkeypatch.setattr(slurm_cluster, "_PROGRAMS", ("sh",))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in missing()
