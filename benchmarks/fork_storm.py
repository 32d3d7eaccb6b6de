"""A storm of short processes, in three jobs or outside of jobs: CPU that sources attribute.

    python benchmarks/fork_storm.py [--processes 10000] [--milliseconds 20-200] [--every 10]
    python benchmarks/fork_storm.py --outside [--lanes 8] [--seconds 60] [--milliseconds 1-30]

Needs root, and loaded programs (`ccagent kernel load`, or --directory). Creates three control
groups in Slurm's layout. In each group it starts processes that use some CPU time and end:
children, children of children, and orphans whose parent ends first. Meanwhile two agents sample at
the same times with the sources `bpf` and `procfs`. Their `cpu_util`, summed over all intervals, is
compared with the CPU time that the kernel accounted to each control group.

With --outside, --lanes lanes start processes one after the other in one control group outside of
jobs. Each process has a separate process group. The processes have --names names and --users users.
Meanwhile one agent samples with the source `bpf`. In addition to the attributed share it prints the
cost of a sample (CPU, including the kernel's, from reading to the encoded envelope) and its memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ccagent.agents.sonar.process import ProcessSource

CGROUP = Path("/sys/fs/cgroup")
JOBS = (990_000_001, 990_000_002, 990_000_003)
WIDTH = 4
"""Concurrent processes of a job."""

USERS = 61_000
"""Id of the first user of a storm outside of jobs. No account has this id."""

_SET_NAME = 15
"""PR_SET_NAME of prctl(2)."""

QUIET = 3
"""Seconds without any process of the jobs after which the storm is over."""


def burn(milliseconds: float) -> None:
    """Use CPU time until the limit."""
    end = time.process_time() + milliseconds / 1000
    while time.process_time() < end:
        pass


def child(kind: int, mine: float, childs: float) -> None:
    """Run one process of the storm, or two processes, with or without waiting for each other."""
    pid = os.fork() if kind else 0
    if kind and not pid:
        burn(childs)
        os._exit(0)
    burn(mine)
    if kind == 1:
        os.waitpid(pid, 0)
    os._exit(0)


def storm(processes: int, least: float, most: float, seed: int) -> None:
    """Start processes, WIDTH at a time."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret depends on it
    started = alive = 0
    while started < processes or alive:
        if started < processes and alive < WIDTH:
            kind = chance.choice((0, 0, 1, 2))
            mine, childs = chance.uniform(least, most), chance.uniform(least, most)
            if os.fork() == 0:
                child(kind, mine, childs)
            started += 1 if kind == 0 else 2
            alive += 1
        else:
            os.wait()
            alive -= 1


def lane(number: int, options: argparse.Namespace) -> None:
    """Start processes one after the other, each in a separate process group."""
    chance = random.Random(options.seed + number)  # noqa: S311 - nothing secret depends on it
    least, most = map(float, options.milliseconds.split("-"))
    library = ctypes.CDLL(None)
    os.setuid(USERS + number % options.users)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        milliseconds, name = chance.uniform(least, most), chance.randrange(options.names)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            library.prctl(_SET_NAME, f"storm-{name}".encode())
            burn(milliseconds)
            os._exit(0)
        os.waitpid(pid, 0)


@contextmanager
def job_cgroups(
    jobs: Iterable[int] = JOBS, controller: str = "cpuacct"
) -> Generator[dict[int, Path]]:
    """Create a control group for each job, in Slurm's layout.

    controller: of version 1, if the machine has that version.
    """
    if (CGROUP / controller).is_dir():
        top = CGROUP / controller / "slurm_storm/uid_0"
    else:
        top = CGROUP / "system.slice/storm_slurmstepd.scope"
    top.mkdir(parents=True, exist_ok=True)
    made = {job: top / f"job_{job}" for job in jobs}
    for path in made.values():
        path.mkdir(exist_ok=True)
    try:
        yield made
    finally:
        for path in (*made.values(), top, top.parent):
            if path.name.startswith(("job_", "uid_", "slurm_", "storm_")):
                path.rmdir()


def join(path: Path) -> None:
    """Move this process to a control group."""
    (path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def used(path: Path) -> float:
    """Return the CPU seconds that the kernel accounted to a control group."""
    try:
        return int((path / "cpuacct.usage").read_text(encoding="ascii")) / 1e9
    except FileNotFoundError:
        fields = (path / "cpu.stat").read_text(encoding="ascii").split()
        return int(fields[fields.index("usage_usec") + 1]) / 1e6


@contextmanager
def plain_cgroup() -> Generator[Path]:
    """Create a control group outside of jobs."""
    top = CGROUP / "cpuacct" if (CGROUP / "cpuacct").is_dir() else CGROUP
    path = top / f"ccagent-storm-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


def measure_outside(options: argparse.Namespace) -> dict[str, Any]:
    """Run a storm outside of jobs. Return the attributed CPU, and the cost of samples."""
    from msgspec import convert

    from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.agents.sonar.sources.bpf import BpfSource
    from ccagent.machine.node import Node
    from ccagent.records.encoding import encode
    from ccagent.records.envelopes import SampleEnvelope

    node = Node(cluster="benchmark")
    selection = ProcessSelection(system_jobs=True, users=(), commands=(), cpu_time=0.0)
    agent = SampleAgent(convert({"source": "bpf"}, SampleSettings), frozenset({"sonar"}))
    agent._source = BpfSource(node, selection, options.directory)  # noqa: SLF001
    users = {node.user(USERS + number) for number in range(options.users)}
    told = 0.0
    errors: list[str] = []
    costs: list[float] = []
    sizes: list[int] = []
    records: list[int] = []
    loads: list[float] = []
    read_at = time.monotonic()

    def sample() -> bool:
        nonlocal told, read_at
        before, begin = read_at, _cpu_time()
        read_at = time.monotonic()
        (envelope,) = found = [
            record for record in agent.sample(node) if isinstance(record, SampleEnvelope)
        ]
        sizes.append(sum(len(message.body) for message in encode(found, "sonar", node)))
        costs.append((_cpu_time() - begin) * 1000)
        if envelope.data is None:
            raise SystemExit("a sample failed")
        attributes = envelope.data.attributes
        loads.append(attributes.system.load1)
        errors.extend(each.detail for each in attributes.errors)
        used = [
            process.cpu_util
            for job in attributes.jobs
            if job.user in users
            for process in job.processes
        ]
        records.append(len(used))
        told += sum(used) / 100 * (read_at - before)
        return bool(used)

    with plain_cgroup() as path:
        agent.prepare(node)
        read_at = time.monotonic()
        lanes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--lane", str(number)),
                    *("--seconds", str(options.seconds), "--milliseconds", options.milliseconds),
                    *("--names", str(options.names), "--users", str(options.users)),
                ],
                preexec_fn=partial(_join_nicely, path),  # noqa: PLW1509 - this process has one thread
            )
            for number in range(options.lanes)
        ]
        while any(each.poll() is None for each in lanes):
            time.sleep(options.every)
            sample()
        in_storm = slice(1, len(costs) - 1)
        quiet = 0
        while quiet < QUIET:
            time.sleep(1)
            quiet = 0 if sample() else quiet + 1
        truth = used(path)
    agent.close()
    return {
        "cgroup_s": round(truth, 3),
        "bpf_s": round(told, 3),
        "bpf_percent": round(100 * told / truth, 2),
        "samples": len(costs[in_storm]),
        "sample_ms": round(statistics.median(costs[in_storm]), 2),
        "sample_ms_most": round(max(costs[in_storm]), 2),
        "records": max(records),
        "kilobytes": max(sizes) // 1024,
        "rss_mb": round(_largest_memory() / 1024, 1),
        "load1": max(loads),
        "errors": errors,
    }


def _largest_memory() -> int:
    """Return the maximum resident memory in KB. ru_maxrss would include the parent's."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0])


def _cpu_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _join_nicely(path: Path) -> None:
    join(path)
    os.nice(5)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the storm. Return CPU seconds by job, from the kernel and from the sources."""
    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.agents.sonar.sources import PreferredSource
    from ccagent.agents.sonar.sources.procfs import ProcfsSource
    from ccagent.machine.node import Node

    node = Node()
    selection = ProcessSelection(system_jobs=True, users=(), commands=(), cpu_time=0.0)
    bpf = PreferredSource(node, selection, asked=True, directory=options.directory)
    sources: dict[str, ProcessSource] = {"bpf": bpf, "procfs": ProcfsSource(node, selection)}
    least, most = map(float, options.milliseconds.split("-"))
    told = {name: dict.fromkeys(JOBS, 0.0) for name in sources}
    read_at: dict[str, float] = {}

    def sample() -> bool:
        """Add the CPU of a sample by job. Return whether the sample contains any of the jobs."""
        found = False
        for name, source in sources.items():
            processes = source.read()
            before, read_at[name] = read_at[name], time.monotonic()
            for process in processes:
                if process.job in JOBS:
                    found = True
                    told[name][process.job] += process.cpu_util / 100 * (read_at[name] - before)
        return found

    with job_cgroups() as cgroups:
        for name, source in sources.items():
            source.begin()
            read_at[name] = time.monotonic()
        begin = time.monotonic()
        jobs = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--storm", "--seed", str(job)),
                    *("--processes", str(options.processes // len(JOBS))),
                    *("--milliseconds", options.milliseconds),
                ],
                preexec_fn=partial(join, path),  # noqa: PLW1509 - this process has one thread
            )
            for job, path in cgroups.items()
        ]
        while any(each.poll() is None for each in jobs) or any(
            (path / "cgroup.procs").read_text(encoding="ascii") for path in cgroups.values()
        ):
            time.sleep(options.every - (time.monotonic() - begin) % options.every)
            sample()
        # Orphans exist until init waits for them; then the kernel frees them.
        quiet = 0
        while quiet < QUIET:
            time.sleep(1)
            quiet = 0 if sample() else quiet + 1
        truth = {job: used(path) for job, path in cgroups.items()}
    if bpf.name != "bpf":
        raise SystemExit("the programs are not loaded: ccagent kernel load")
    return {
        "processes": options.processes,
        "seconds": round(time.monotonic() - begin, 1),
        "least_ms": least,
        "most_ms": most,
        "jobs": [
            {"job": job, "cgroup_s": round(truth[job], 3)}
            | {f"{name}_s": round(told[name][job], 3) for name in sources}
            | {f"{name}_percent": round(100 * told[name][job] / truth[job], 2) for name in sources}
            for job in JOBS
        ],
    }


def main() -> None:
    """Measure. Print a line for each job, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=10_000)
    parser.add_argument("--milliseconds", default="20-200", help="CPU time of each")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--directory", default="/run/ccagent-kernel")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--outside", action="store_true", help="a storm outside of jobs")
    parser.add_argument("--lanes", type=int, default=8, help="processes at a time, outside of jobs")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration, outside of jobs")
    parser.add_argument("--names", type=int, default=20, help="commands, outside of jobs")
    parser.add_argument("--users", type=int, default=2, help="users, outside of jobs")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--storm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        least, most = map(float, options.milliseconds.split("-"))
        storm(options.processes, least, most, options.seed)
        return
    if options.lane is not None:
        lane(options.lane, options)
        return
    result = measure_outside(options) if options.outside else measure(options)
    if options.json:
        json.dump(result, sys.stdout)
        return
    if options.outside:
        print("  ".join(f"{name} {value}" for name, value in result.items()))
        return
    print(f"{result['processes']} processes in {result['seconds']} s")
    for job in result["jobs"]:
        print("  ".join(f"{name} {value}" for name, value in job.items()))


if __name__ == "__main__":
    main()
