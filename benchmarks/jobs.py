"""Cost of the agent `jobs`: a first run over many jobs, and rounds with few changes.

    python benchmarks/jobs.py [--jobs 100000] [--active 5000] [--runs 3] [--before DIRECTORY]

A stand-in for sacct prints jobs, each with the steps batch and extern. Each run is a new process.
It measures the agent's CPU time up to the encoded messages, without the stand-in's, and the maximum
resident memory. For comparison it measures the CPU time of only splitting the same output at its
delimiters. The minimum of the runs is printed.

`--before` is another checkout, measured in turns with this one. Its packages must have the same
names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ccagent.agents.slurm.jobs import sacct
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.machine.node import Node
from ccagent.records.encoding import encode

_SACCT = f"""#!{sys.executable}
import os, sys
jobs, changed = map(int, open(sys.argv[0] + ".count").read().split())
delimiter = next(a for a in sys.argv if a.startswith("--delimiter=")).partition("=")[2]
fields = {sacct.FIELDS!r}
plain = dict.fromkeys(fields, "")
plain |= {{
    "State": "COMPLETED", "Partition": "normal", "ElapsedRaw": "3600", "Suspended": "00:00:00",
    "TimelimitRaw": "1440", "ReqCPUS": "16", "ReqMem": "64000M", "ReqNodes": "2",
    "Layout": "Unknown", "ExitCode": "0:0", "ReqTRES": "billing=16,cpu=16,mem=64000M,node=2",
    "AllocTRES": "billing=16,cpu=16,mem=64000M,node=2", "SystemCPU": "00:12.345",
    "UserCPU": "15:00:01", "Priority": "1057", "JobName": "simulate",
}}
out = sys.stdout.buffer
last = [""] if "--parsable" in sys.argv else []
asked = next((a.partition("=")[2] for a in sys.argv if a.startswith("--jobs=")), "")
numbers = [int(one) - 1 for one in asked.split(",")] if asked else range(jobs)
for n in numbers:
    begin = {int(time.time()) - 86_400} + n % 3600
    plain["Priority"] = "1057" if n >= changed else str(os.getpid())
    for step in ("", ".batch", ".extern"):
        row = plain | {{
            "JobID": f"{{n + 1}}{{step}}", "JobIDRaw": f"{{n + 1}}{{step}}", "Submit": str(begin),
            "Start": str(begin + 60), "End": str(begin + 3660),
            "User": "" if step else f"user{{n % 100}}", "Account": f"account{{n % 20}}",
            "NodeList": f"c[{{n % 50}}-{{n % 50 + 1}}]",
        }}
        if step:
            row |= {{"Priority": "", "AveCPU": "00:03:00", "AveDiskRead": "12.50M",
                     "AveRSS": "3772K", "MaxRSS": "3772K", "MaxVMSize": "4000K"}}
        out.write(delimiter.join([*row.values(), *last]).encode() + b"\\n")
"""


class Sampled(NamedTuple):
    """The cost of one round of the agent."""

    messages: int
    records: int
    cpu: float
    memory: float


def sample(agent: JobsAgent, node: Node) -> Sampled:
    """Run one round, including encoding."""
    begun = time.process_time()
    messages, records = 0, 0
    for message in encode(agent.sample(node), ["sonar"], node):
        messages += 1
        records += message.body.count(b'"job_id":')
    agent.commit_sample()
    agent.save_state()
    cpu = time.process_time() - begun
    # VmHWM: unlike ru_maxrss it excludes the parent's memory before the fork.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    memory = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return Sampled(messages, records, cpu, memory)


def splitting(program: str) -> float:
    """Return the CPU seconds of reading and splitting the output."""
    delimiter = b"\x1f" + b"0" * 24 + b"\x1f"
    begun = time.process_time()
    with subprocess.Popen(
        [program, f"--delimiter={delimiter.decode()}"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            line.split(delimiter)
    return time.process_time() - begun


def worker(program: str, jobs: int, active: int) -> None:
    """Run one round in this process. Print its cost as JSON."""
    count = Path(program + ".count")
    node = Node(hostname="master", cluster="fox")

    def open_agent(name: str) -> JobsAgent:
        state = os.path.join(directory, name)
        settings = JobsSettings(sacct=program, squeue="true", state_file=state)
        return JobsAgent(settings, frozenset({"sonar"}))

    found: dict[str, Sampled] = {}
    with tempfile.TemporaryDirectory() as directory:
        count.write_text(f"{jobs} 0")
        agent = open_agent("first")
        found[f"first run, {jobs} jobs"] = sample(agent, node)
        found[f"again, {jobs} jobs"] = sample(agent, node)
        agent = open_agent("steady")
        count.write_text(f"{active} 0")
        sample(agent, node)
        changed = active // 100
        count.write_text(f"{active} {changed}")
        found[f"{active} jobs, {changed} changed"] = sample(agent, node)
        sample(agent, node)
        found[f"{active} jobs, none changed"] = sample(agent, node)
    json.dump(found, sys.stdout)


def in_worker(program: str, jobs: int, active: int, checkout: str) -> dict[str, Sampled]:
    """Run one round in a new process, with the code of another checkout if given."""
    command = [sys.executable, __file__, "--worker", program]
    command += ["--jobs", str(jobs), "--active", str(active)]
    environment = dict(os.environ)
    if checkout:
        environment["PYTHONPATH"] = os.path.join(os.path.abspath(checkout), "src")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return {name: Sampled(*values) for name, values in json.loads(done.stdout).items()}


def least(runs: list[dict[str, Sampled]], name: str) -> Sampled:
    """Return the run with the least CPU time, because other load only increases it."""
    return min((run[name] for run in runs), key=lambda sampled: sampled.cpu)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--before", default="", metavar="DIRECTORY")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.jobs, options.active)
        return
    with tempfile.TemporaryDirectory() as directory:
        program, count = Path(directory, "sacct"), Path(directory, "sacct.count")
        program.write_text(_SACCT)
        program.chmod(0o755)
        now: list[dict[str, Sampled]] = []
        before: list[dict[str, Sampled]] = []
        alone: list[float] = []
        for _ in range(options.runs):
            now.append(in_worker(str(program), options.jobs, options.active, ""))
            if options.before:
                old = in_worker(str(program), options.jobs, options.active, options.before)
                before.append(old)
            count.write_text(f"{options.jobs} 0")
            alone.append(splitting(str(program)))
    print(f"splitting {options.jobs} jobs alone: {min(alone):.2f} s CPU")
    print(f"{'':28}{'records':>9}{'messages':>9}{'CPU s':>8}{'MB':>5}", end="")
    print(f"{'before':>8}{'MB':>5}{'ratio':>7}" if before else "")
    for name in now[0]:
        here = least(now, name)
        print(f"{name:28}{here.records:9}{here.messages:9}", end="")
        print(f"{here.cpu:8.2f}{here.memory:5.0f}", end="")
        if before:
            other = least(before, name)
            print(f"{other.cpu:8.2f}{other.memory:5.0f}{here.cpu / other.cpu:7.2f}", end="")
        print()


if __name__ == "__main__":
    main()
