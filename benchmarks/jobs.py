"""What the agent `jobs` costs: a first run over many jobs, and rounds in which few change.

    python benchmarks/jobs.py [--jobs 100000] [--active 5000]

A program stands in for sacct and prints jobs, each with the steps batch and extern. Measured is the
CPU time of the agent to the encoded messages, without that program's, and the largest resident
memory; beside it the CPU time that splitting the same output at its delimiters takes alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ccagent.agents.slurm.jobs import sacct
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.machine.node import Node
from ccagent.records.message import encode_each

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
        out.write(delimiter.join(row.values()).encode() + b"\\n")
"""


def sample(agent: JobsAgent, node: Node) -> tuple[int, int, float]:
    """Sample once; give messages, records and CPU seconds."""
    begun = time.process_time()
    messages, records = 0, 0
    for message in encode_each(agent.sample(node), ["sonar"], node):
        messages += 1
        records += message.body.count(b'"job_id":')
    agent.handed_on()
    agent.settled()
    return messages, records, time.process_time() - begun


def splitting(program: str) -> float:
    """CPU seconds that reading and splitting the output take."""
    delimiter = b"\x1f" + b"0" * 24 + b"\x1f"
    begun = time.process_time()
    with subprocess.Popen(
        [program, f"--delimiter={delimiter.decode()}"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            line.split(delimiter)
    return time.process_time() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        program, count = Path(directory, "sacct"), Path(directory, "sacct.count")
        program.write_text(_SACCT)
        program.chmod(0o755)
        node = Node(hostname="master", cluster="fox")

        def agent(name: str) -> JobsAgent:
            state = os.path.join(directory, name)
            settings = JobsSettings(sacct=str(program), squeue="true", state_file=state)
            return JobsAgent(settings, frozenset({"sonar"}))

        count.write_text(f"{options.jobs} 0")
        first = agent("first")
        messages, records, cpu = sample(first, node)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        alone = splitting(str(program))
        print(
            f"first run: {options.jobs} jobs, {records} records in {messages} messages: "
            f"{cpu:.2f} s CPU, {memory} MB; splitting alone {alone:.2f} s, ratio {cpu / alone:.1f}"
        )
        _, records, cpu = sample(first, node)
        print(f"again:     {options.jobs} jobs, {records} records: {cpu:.2f} s CPU")
        steady = agent("steady")
        for changed in (0, options.active // 100, 0):
            count.write_text(f"{options.active} {changed}")
            _, records, cpu = sample(steady, node)
            print(
                f"{options.active} jobs, {changed} changed: {records} records, "
                f"{cpu * 1000:.0f} ms CPU"
            )


if __name__ == "__main__":
    main()
