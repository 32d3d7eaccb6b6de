"""Jobs of a real Slurm whose control groups get the names of Slurm 26.05 while others run.

Runs in a virtual machine with a kernel of Debian (tests/support/debian_machine.py), as root.

    python -m tests.support.slurm_group_scenarios > results.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ccagent.agents.energy.cards import list_processes
from ccagent.agents.jobio.points import living_jobs
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.agents.sonar.sources.bpf import BpfSource
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.controls.changes import find_jobs
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.bpf import loading, pins
from ccagent.machine.bpf.io_loading import IoOptions
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.node import Node
from tests.support.emulated_slurm import ALICE, emulated_slurm, name_groups_by_sluid
from tests.support.ended_records import parse_ended

Result = dict[str, Any]

_GO = Path("/tmp/go")
_WORK = (
    "/bin/true; dd if=/dev/zero of=/tmp/work-$SLURM_JOB_ID bs=4096 count=1 conv=notrunc 2> /tmp/dd"
)
_LOOP = f"umask 0; while [ ! -e {_GO} ]; do {_WORK}; sleep 0.2; done"
SOURCES = {"procfs": ProcfsSource, "bpf": BpfSource, "psutil": PsutilSource}


def attribute(count: int) -> Result:
    """Return the jobs that each source and reader gives; only processes that stay are compared."""
    node, selection = Node(), ProcessSelection()
    before = _truth()
    found: dict[str, dict[int, int]] = {}
    for name, source in SOURCES.items():
        reader = source(node, selection)
        reader.begin()
        found[name] = {each.pid: each.job for each in reader.read() if each.uid == ALICE}
    truth = {pid: job for pid, job in _truth().items() if before.get(pid) == job}
    jobs = {each.job for each in job_directories(node, ("memory",))}
    exposed = NodeSources(ExporterSettings(max_jobs=10_000)).jobs.get(node).jobs if jobs else []
    return {
        "count": count,
        "names": sorted(Path(each.path).name for each in job_directories(node, ("memory",))),
        "truth": sorted({*truth.values()}),
        "wrong": {
            name: {pid: (truth[pid], job) for pid, job in own.items() if truth.get(pid, job) != job}
            for name, own in found.items()
        },
        "compared": {name: len(own.keys() & truth.keys()) for name, own in found.items()},
        "directories": sorted(jobs),
        "controls": sorted(find_jobs(node) or ()),
        "jobio": sorted(living_jobs(node)),
        "counters": sorted(JobCgroups().read(node)),
        "energy": sorted({job for _, job, _ in list_processes(node)}),
        "exporter": {
            each.job: sorted({truth[pid] for pid in each.pids if pid in truth}) for each in exposed
        },
        "unknown": sorted(node.unknown_groups),
    }


def _truth() -> dict[int, int]:
    """Return the job of each process of alice by its environment, which her jobs do not change."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == ALICE:
                for variable in (path / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(b"SLURM_JOB_ID="):
                        found[int(path.name)] = int(variable.partition(b"=")[2])
        except OSError:
            continue
    return found


def ended() -> Result:
    """Return the ended processes by job, of alice and of root, and how many are Slurm's own."""
    content = Path(pins.DIRECTORY, pins.ENDED).read_bytes()
    found: Result = {"alice": {}, "root": {}, "own": {}}
    for key, sums in parse_ended(content).entries.items():
        command = key.command.decode()
        if key.is_slurms_own:
            found["own"][command] = found["own"].get(command, 0) + sums.processes
        elif key.euid == ALICE:
            of_job = found["alice"].setdefault(key.job, {})
            of_job[command] = of_job.get(command, 0) + sums.processes
        elif key.job:
            found["root"].setdefault(key.job, []).append(command)
    return found


def shown_writes() -> dict[int, int]:
    """Return the bytes that each job has written to tmpfs, as `ccagent jobio show` tells."""
    command = [sys.executable, "-m", "ccagent", "jobio", "show", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found: dict[int, int] = {}
    for mount in shown["mounts"]:
        if mount["point"] == "/tmp":
            found[mount["job"]] = found.get(mount["job"], 0) + mount["write_bytes"]
    return found


def run() -> Result:
    """Run a job with its number, one that is named by a SLUID, and a short one like it."""
    results: Result = {}
    loading.load(io=IoOptions())
    with emulated_slurm("v2", "PrologFlags=Contain\n") as slurm:
        job = ("-n1", "--mem=100", "--wrap")
        numbered = slurm.submit(*job, _LOOP)
        slurm.wait_until_running(1)
        name_groups_by_sluid()
        named = slurm.submit(*job, _LOOP)
        slurm.wait_until_running(2)
        results["jobs"] = [numbered, named]
        results["running"] = attribute(2)
        results["written"] = shown_writes()
        # Programs that are loaded while jobs run do not see their slurmstepd start.
        loading.unload()
        loading.load(io=IoOptions())
        deadline = time.monotonic() + 120
        while not {numbered, named} <= shown_writes().keys() and time.monotonic() < deadline:
            time.sleep(1)
        results["written_later"] = shown_writes()
        _GO.touch()
        slurm.wait_until_ended()
        results["short"] = slurm.submit(*job, _WORK)
        slurm.wait_until_ended()
        results["ended"] = ended()
        results["written_at_last"] = shown_writes()
    return results


def main() -> None:
    """Print the results as JSON."""
    os.umask(0)
    try:
        results = run()
    except Exception:  # noqa: BLE001 - the test that looks for the result shows it
        results = {"error": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
