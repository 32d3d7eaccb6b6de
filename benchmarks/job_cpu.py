"""CPU time of a job of short processes: what each sink's records say, and what the kernel says.

    python benchmarks/job_cpu.py [--processes 300] [--milliseconds 20-400] [--every 10]

Needs root; the source `bpf` also loaded programs (`ccagent kernel load`, or --directory). Runs one
storm (see fork_storm.py) below a shell, in a control group of Slurm's layout. Meanwhile it samples
with each source and each mix of sinks, and adds up the encoded records of each sink in three ways:

* cpu_util: `cpu_util` times the interval, over all records;
* differences: of `cpu_time` per stream (equal pid and command), and `cpu_avg` of a stream's first
  record for one interval: CPU time by sonalyze's rule for one stream;
* average: sonalyze's `CpuAvgPct` times `Duration`, not rounded to whole percents.

Figures are s, and percent of the control group's CPU time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from msgspec import convert, json

from benchmarks.fork_storm import JOBS, job_cgroups, join, used
from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sonar.process import ProcessSelection, ProcessSource
from ccagent.agents.sonar.sources import PreferredSource
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.machine.node import Node
from ccagent.records.encoding import Profile, encode_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.sonar.process import Process

MIXES: dict[str, tuple[tuple[str, ...], str]] = {
    "any": (("",), ""),
    "jobanalyzer": (("jobanalyzer",), ""),
    "both": (("", "jobanalyzer"), ""),
    "any, preset": (("",), "jobanalyzer"),
}
"""Receivers of the sinks (empty: no `receiver`) and the key `preset`, by name."""

_WINDOW, _CARRIED = 10, 60
"""Seconds: sonalyze joins records of a window, and repeats the last record of a stream."""

_ROLLED_UP = 10_000_000

Stream = list[tuple[int, float]]
"""Time and CPU use in percent of the records of a stream, as sonalyze computes them."""


class SentProcess(NamedTuple):
    """A process in a sample: the fields of its record that have CPU time."""

    pid: int
    command: str
    cpu_util: float
    cpu_avg: float
    cpu_time: float


class SentSample(NamedTuple):
    """What one sink gets of the job at one sample: time in s, s since the last, processes."""

    time: int
    interval: float
    processes: list[SentProcess]


def streams_of(samples: list[SentSample]) -> list[Stream]:
    """Return the streams of samples. A record whose counter fell is left out."""
    found: dict[tuple[int, str], list[tuple[int, SentProcess]]] = defaultdict(list)
    for sample in samples:
        for process in sample.processes:
            stream = found[process.pid, process.command]
            if not stream or stream[-1][0] != sample.time:
                stream.append((sample.time, process))
    streams: list[Stream] = []
    for stream in found.values():
        uses = [(stream[0][0], stream[0][1].cpu_avg)]
        for (before, old), (after, new) in pairwise(stream):
            growth = new.cpu_time - old.cpu_time
            if growth >= 0:
                uses.append((after, 100 * growth / (after - before)))
        streams.append(uses)
    return streams


def sum_differences(samples: list[SentSample]) -> float:
    """Return CPU seconds: each record's use for the time since the previous sample."""
    previous = dict(pairwise(sorted({sample.time for sample in samples}, reverse=True)))
    return sum(
        use / 100 * (at - previous[at])
        for stream in streams_of(samples)
        for at, use in stream
        if at in previous
    )


def average_by_duration(samples: list[SentSample]) -> float:
    """Return `CpuAvgPct` times `Duration` in CPU seconds, with sonalyze's merge of streams."""
    streams = streams_of(samples)
    positions = [0] * len(streams)
    merged: list[tuple[int, float]] = []
    while True:
        heads = [s[at][0] for s, at in zip(streams, positions, strict=True) if at < len(s)]
        if not heads:
            break
        now, total = min(heads), 0.0
        for index, stream in enumerate(streams):
            at = positions[index]
            if at < len(stream):
                if stream[at][0] < now + _WINDOW:
                    total += stream[at][1]
                    positions[index] += 1
            elif now - _CARRIED <= stream[-1][0] < now:
                total += stream[-1][1]
        merged.append((now, total))
    duration = merged[-1][0] - merged[0][0]
    return sum(use for _, use in merged) / len(merged) / 100 * duration


class SharedSource(ProcessSource):
    """A source whose readings all mixes get: what ended has one reader per process."""

    def __init__(self, source: ProcessSource) -> None:
        super().__init__()
        self.name = source.name
        self.errors = source.errors
        self._source = source
        self._processes: list[Process] = []
        self._read_at = time.monotonic()
        source.begin()

    def take(self) -> float:
        """Take a reading. Return s since the last one."""
        before, self._read_at = self._read_at, time.monotonic()
        self._processes = self._source.read()
        self.counts_ended = self._source.counts_ended
        return self._read_at - before

    def begin(self) -> None:
        """Do nothing: the first reading is taken."""

    def read(self) -> list[Process]:
        """Return the processes of the last reading."""
        return self._processes

    def close(self) -> None:
        """Close all open files."""
        self._source.close()


class Sampler:
    """An agent with one source and one mix of sinks, and what each sink got."""

    def __init__(self, node: Node, source: SharedSource, mix: str) -> None:
        receivers, preset = MIXES[mix]
        self.source, self.mix = source, mix
        self.sent: dict[str, list[SentSample]] = {receiver: [] for receiver in receivers}
        self._node = node
        self._profiles = [Profile(receiver=receiver) for receiver in receivers]
        settings = convert({"preset": preset}, SampleSettings)
        self._agent = SampleAgent(settings, frozenset({"sonar"}))
        self._agent.receivers = frozenset(receivers)
        self._agent._source = source  # noqa: SLF001
        self._agent.prepare(node)

    def sample(self, now: int, interval: float) -> None:
        """Take a sample, and keep what each sink gets."""
        for profile, message in encode_each(
            self._agent.sample(self._node), self._profiles, self._node
        ):
            jobs = json.decode(message.body)["data"]["attributes"].get("jobs", [])
            processes = [
                SentProcess(
                    _ROLLED_UP if each.get("rolledup") else each["pid"],
                    each["cmd"],
                    *(each.get(name, 0) for name in ("cpu_util", "cpu_avg", "cpu_time")),
                )
                for job in jobs
                if job["job"] == JOBS[0]
                for each in job["processes"]
            ]
            self.sent[profile.receiver].append(SentSample(now, interval, processes))

    def rows(self, truth: float) -> Iterator[str]:
        """Yield a line of the table for each sink."""
        for receiver, samples in self.sent.items():
            of_job = [sample for sample in samples if sample.processes]
            figures = (
                sum(p.cpu_util / 100 * s.interval for s in of_job for p in s.processes),
                sum_differences(of_job),
                average_by_duration(of_job),
            )
            cells = "".join(f"{each:9.1f} {100 * each / truth:5.0f} %" for each in figures)
            yield f"{self.source.name:8}{self.mix:13}{receiver or 'any':13}{cells}"


def main() -> None:
    """Run the storm. Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=300)
    parser.add_argument("--milliseconds", default="20-400", help="CPU time of each")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--directory", default="/run/ccagent-kernel")
    options = parser.parse_args()
    node = Node(cluster="benchmark")
    selection = ProcessSelection()
    sources: list[ProcessSource] = [ProcfsSource(node, selection), PsutilSource(node, selection)]
    if os.access(f"{options.directory}/tasks", os.R_OK):
        sources.append(PreferredSource(node, selection, asked=True, directory=options.directory))
    storm = [sys.executable, str(Path(__file__).with_name("fork_storm.py")), "--storm"]
    storm += ["--processes", str(options.processes), "--milliseconds", options.milliseconds]
    with job_cgroups(JOBS[:1]) as groups:
        (group,) = groups.values()
        samplers = {
            shared: [Sampler(node, shared, mix) for mix in MIXES]
            for shared in map(SharedSource, sources)
        }
        # As a batch script: a shell that waits for the storm, and lives until the last sample.
        script = subprocess.Popen(
            ["sh", "-c", '"$@"; echo; read end', "sh", *storm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=partial(join, group),  # noqa: PLW1509 - this process has one thread
        )
        try:
            begin, left = time.monotonic(), 3
            while left:
                for shared, each in samplers.items():
                    interval, now = shared.take(), int(time.time())
                    for sampler in each:
                        sampler.sample(now, interval)
                # The storm is over when the shell writes a line; then come two more samples.
                time.sleep(options.every - (time.monotonic() - begin) % options.every)
                left -= _is_over(group)
        finally:
            script.send_signal(signal.SIGKILL)
            script.communicate()
        truth = used(group)
    print(f"{options.processes} processes, a sample every {options.every:g} s: {truth:.1f} s")
    names = "".join(f"{each:>17}" for each in ("cpu_util", "differences", "average"))
    print(f"{'source':8}{'sinks':13}{'records of':13}{names}")
    for shared, each in samplers.items():
        for sampler in each:
            print(*sampler.rows(truth), sep="\n")
        shared.close()


def _is_over(group: Path) -> bool:
    """Return whether the shell is alone in the control group."""
    return len((group / "cgroup.procs").read_text(encoding="ascii").split()) == 1


if __name__ == "__main__":
    main()
