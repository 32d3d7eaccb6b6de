"""Cost of a sample: CPU, system calls and memory, for each process source.

    python benchmarks/sample.py [--processes 10,1000,4000] [--source bpf,procfs] [--json FILE]
    python benchmarks/sample.py --job-memory 10 [--processes 1000] [--source procfs]

`bpf` needs `ccagent kernel load`, and is skipped without it.

Starts N sleeping processes (as the user nobody when run as root), ten in each process group.
Measures, each time in a new process:

* a daemon's sample, from reading /proc to the encoded bytes: CPU in user and kernel mode, the
  median of `--samples` of them; resident memory after a tenth of them and after the last;
* the daemon itself, `ccagent run` with a sink `dir:` and a sample a second: `tick_ms` is the CPU of
  all its threads per tick, as the mean of `--ticks` ticks. `agent_ms` is the share of the agent's
  thread, `main_ms` of the schedule; the rest is the sink's. `paced_ms` is the mean of a worker's
  samples at the same pace: after a second of sleep, caches are cold;
* system calls per process in steady state, if strace is installed;
* one-shot: `ccagent sample --once`, CPU and wall time, the median of nine runs;
* the same one-shot run of `sonar`, if it is on PATH.

With --job-memory, as root, the processes are in so many jobs. It measures only a daemon's sample
for Jobanalyzer, with and without the memory of the jobs' control groups (`job-memory`), in turns.

Machines differ and are noisy: compare the rows of one run with each other. For one-shot figures
install ccagent as users do: an editable installation adds some 20 ms to each start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

COMMAND = ["ccagent"] if shutil.which("ccagent") else [sys.executable, "-m", "ccagent"]
GROUP = 10
NOBODY = 65534
ONE_SHOT_RUNS = 9
TRACED_SAMPLES = {"procfs": (5, 25), "bpf": (5, 25)}
PINNED = "/run/ccagent-kernel"
OTHERWISE_TRACED = (2, 4)


@contextlib.contextmanager
def sleeping_processes(number: int) -> Generator[int]:
    """Run `number` sleeping processes, ten in each process group, as another user if possible.

    Yield their parent.
    """
    ready, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        os.setsid()
        pids: list[int] = []
        for index in range(number):
            group = 0 if index % GROUP == 0 else pids[index - index % GROUP]
            pids.append(os.posix_spawn("/bin/sleep", ["sleep", "3600"], {}, setpgroup=group))
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    time.sleep(0.5)
    try:
        yield parent
    finally:
        _kill_children_of(parent)


def _children_of(parent: int) -> list[str]:
    return subprocess.run(
        ["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False
    ).stdout.split()


def _kill_children_of(parent: int) -> None:
    children = _children_of(parent)
    for pid in [*map(int, children), parent]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.waitpid(parent, 0)
    # Init reaps the children later; until then they would disturb the measurements.
    deadline = time.monotonic() + 30
    while children and time.monotonic() < deadline:
        children = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
        time.sleep(0.1)


def worker(source: str, samples: int, pause: float) -> None:
    """Sample in this process. Print the cost as JSON."""
    from msgspec import convert

    from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
    from ccagent.machine.node import Node
    from ccagent.records.encoding import encode

    node = Node(cluster="benchmark")
    agent = SampleAgent(convert({"source": source}, SampleSettings), frozenset({"sonar"}))
    agent.prepare(node)
    costs: list[float] = []
    size = early = 0
    for number in range(samples):
        time.sleep(pause)
        before = _cpu()
        size = sum(len(message.body) for message in encode(agent.sample(node), "sonar", node))
        costs.append(_cpu() - before)
        if number <= samples // 10:
            early = _rss()
    cost = statistics.median(costs[1:] or costs) * 1000
    mean = statistics.mean(costs[1:] or costs) * 1000
    found = {"cpu_ms": cost, "mean_ms": mean, "bytes": size, "early_kb": early, "rss_kb": _rss()}
    json.dump(found, sys.stdout)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss() -> int:
    with open("/proc/self/status", encoding="utf-8") as file:
        return int(re.findall(r"VmRSS:\s+(\d+)", file.read())[0])


def daemon_cost(source: str, samples: int, pause: float = 0.05) -> dict[str, Any]:
    """Run a worker. Return its measurements."""
    command = [sys.executable, __file__, "--worker", source, "--samples", str(samples)]
    command += ["--pause", str(pause)]
    result: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return result


def tick_cost(source: str, ticks: int) -> dict[str, float]:
    """Return the CPU in ms of a tick of `ccagent run`: all threads, agent, main thread."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "ccagent.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                'cluster = "benchmark"\nstatus-socket = ""\n'
                f'[agents.sample]\nevery = "1s"\nsource = "{source}"\n'
                f'[sinks.files]\nurl = "dir:{directory}/data"\n'
            )
        with subprocess.Popen([*COMMAND, "--config", path, "run"]) as daemon:
            try:
                _await_samples(directory, 3)
                before, sent = _threads(daemon.pid), _samples(directory)
                _await_samples(directory, sent + ticks)
                after, number = _threads(daemon.pid), _samples(directory) - sent
            finally:
                daemon.terminate()
    spent = {thread: (ms - before.get(thread, 0)) / number for thread, ms in after.items()}
    main = spent.pop(daemon.pid)
    # Threads have no names. The agent's thread uses the most CPU.
    return {"tick": main + sum(spent.values()), "agent": max(spent.values()), "main": main}


def _samples(directory: str) -> int:
    """Return the number of samples in a sink's directory."""
    files = [os.path.join(top, name) for top, _, names in os.walk(f"{directory}/data")
             for name in names]  # fmt: skip
    count = 0
    for path in files:
        with open(path, "rb") as file:
            count += file.read().count(b"\n")
    return count


def _await_samples(directory: str, number: int) -> None:
    deadline = time.monotonic() + 30 + 2 * number
    while _samples(directory) < number:
        if time.monotonic() > deadline:
            raise SystemExit(f"the daemon has not taken {number} samples")
        time.sleep(0.05)


def _threads(pid: int) -> dict[int, float]:
    """Return the CPU time in ms of each thread of a process."""
    spent: dict[int, float] = {}
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            spent[thread] = int(file.read().split()[0]) / 1e6
    return spent


def system_calls(source: str, processes: int) -> float | None:
    """Return system calls per process and sample in steady state, from two traced runs."""
    if shutil.which("strace") is None:
        return None
    counts: list[int] = []
    traced = TRACED_SAMPLES.get(source, OTHERWISE_TRACED)
    for samples in traced:
        with tempfile.NamedTemporaryFile("r", suffix=".strace") as trace:
            subprocess.run(
                [
                    "strace",
                    "-f",
                    "-c",
                    "-o",
                    trace.name,
                    sys.executable,
                    __file__,
                    "--worker",
                    source,
                    "--samples",
                    str(samples),
                    "--pause",
                    "0",
                ],
                check=True,
                capture_output=True,
            )
            total = re.findall(r"^100\.00.*?(\d+)(?:\s+\d+)?\s+total$", trace.read(), re.MULTILINE)
            counts.append(int(total[0]))
    return (counts[1] - counts[0]) / (traced[1] - traced[0]) / processes


def one_shot(command: list[str]) -> dict[str, float]:
    """Run a command several times. Return median CPU and wall time in ms."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(ONE_SHOT_RUNS):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall.append(time.monotonic() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"cpu_ms": statistics.median(cpu) * 1000, "wall_ms": statistics.median(wall) * 1000}


def measure(number: int, sources: list[str], samples: int, ticks: int) -> Iterator[dict[str, Any]]:
    """Return a row for each source at one number of processes."""
    with sleeping_processes(number):
        processes = sum(name.isdecimal() for name in os.listdir("/proc"))
        for source in sources:
            if source == "bpf" and not os.access(f"{PINNED}/tasks", os.R_OK):
                continue
            daemon = daemon_cost(source, samples)
            paced = daemon_cost(source, ticks + 1, pause=1.0)
            tick = tick_cost(source, ticks)
            shot = one_shot([*COMMAND, "sample", "--once", "--set", f"source={source}"])
            yield {
                "source": source,
                "sleeping": number,
                "processes": processes,
                "daemon_cpu_ms": round(daemon["cpu_ms"], 2),
                "us_per_process": round(daemon["cpu_ms"] * 1000 / processes, 1),
                "paced_ms": round(paced["mean_ms"], 2),
                "tick_ms": round(tick["tick"], 2),
                "agent_ms": round(tick["agent"], 2),
                "main_ms": round(tick["main"], 2),
                "early_rss_mb": round(daemon["early_kb"] / 1024, 1),
                "rss_mb": round(daemon["rss_kb"] / 1024, 1),
                "bytes": daemon["bytes"],
                "calls_per_process": _rounded(system_calls(source, processes)),
                "once_cpu_ms": round(shot["cpu_ms"]),
                "once_wall_ms": round(shot["wall_ms"]),
            }
        if sonar := shutil.which("sonar"):
            shot = one_shot([sonar, "sample"])
            yield {
                "source": "sonar",
                "sleeping": number,
                "processes": processes,
                "once_cpu_ms": round(shot["cpu_ms"]),
                "once_wall_ms": round(shot["wall_ms"]),
            }


def job_memory_cost(number: int, source: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the CPU of a sample for Jobanalyzer with and without `job-memory`, in turns."""
    jobs: int = options.job_memory
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from msgspec import convert

    from benchmarks.fork_storm import JOBS, job_cgroups
    from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.agents.sonar.sources import PreferredSource
    from ccagent.machine.node import Node
    from ccagent.records.encoding import Profile, encode

    node = Node(cluster="benchmark")
    profile = Profile(receiver="jobanalyzer")
    agents: dict[str, SampleAgent] = {}
    costs: dict[str, list[float]] = {}
    numbers = range(JOBS[0], JOBS[0] + jobs)
    with job_cgroups(numbers, "memory") as groups, sleeping_processes(number) as parent:
        for index, pid in enumerate(_children_of(parent)):
            group = groups[numbers[index // GROUP % jobs]]
            (group / "cgroup.procs").write_text(pid, encoding="ascii")
        for kind in ("processes", "cgroup"):
            keys = {"source": source, "preset": "jobanalyzer", "job-memory": kind}
            agents[kind] = SampleAgent(convert(keys, SampleSettings), frozenset({"sonar"}))
            if source == "bpf":
                agents[kind]._source = PreferredSource(  # noqa: SLF001
                    node, ProcessSelection(), asked=True, directory=options.directory
                )
            agents[kind].prepare(node)
            costs[kind] = []
        for turn in range(options.samples):
            time.sleep(0.05)
            for kind in sorted(agents, reverse=bool(turn % 2)):
                before = _cpu()
                encode(agents[kind].sample(node), profile, node)
                costs[kind].append(_cpu() - before)
        for agent in agents.values():
            agent.close()
    without, scaled = (statistics.median(costs[kind][1:]) * 1000 for kind in agents)
    return {
        "source": source,
        "sleeping": number,
        "jobs": jobs,
        "processes_ms": round(without, 3),
        "cgroup_ms": round(scaled, 3),
        "more_percent": round(100 * (scaled / without - 1), 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as an aligned table."""
    columns = list(rows[0])
    cells = [columns] + [[str(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def main() -> None:
    """Measure. Print a table, and write JSON if wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", default="10,1000,4000")
    parser.add_argument("--source", default="bpf,procfs,psutil")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument(
        "--job-memory", type=int, metavar="JOBS", help="measure only its cost, with so many jobs"
    )
    parser.add_argument("--directory", default=PINNED, help="programs for --job-memory")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=0.05, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.samples, options.pause)
        return
    rows: list[dict[str, Any]] = []
    for number in map(int, options.processes.split(",")):
        sources = options.source.split(",")
        if options.job_memory:
            rows += [
                job_memory_cost(number, source, options)
                for source in sources
                if source != "bpf" or os.access(f"{options.directory}/tasks", os.R_OK)
            ]
        else:
            rows += measure(number, sources, options.samples, options.ticks)
    print(table(rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
