"""CPU time as Jobanalyzer counts it: each second of a job once, each process printed once."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.machine.bpf.process_records import EndedKey
from ccagent.records.encoding import Profile, encode, encode_each
from ccagent.records.points import Point
from tests.support.kernel_tree import PinnedNode
from tests.support.schema import validate

JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
EVERY = 30
ROLLED_UP = 10_000_000


def streams_of(samples: list[list[dict[str, Any]]]) -> dict[tuple[int, str], list[tuple[int, Any]]]:
    """Records by pid and command, with the number of the sample, as sonalyze joins them.

    Rolled-up ones go by the job instead of the pid; of several in one sample it keeps the first.
    """
    streams: dict[tuple[int, str], list[tuple[int, Any]]] = defaultdict(list)
    for number, processes in enumerate(samples):
        for process in processes:
            pid = ROLLED_UP + 7 if process.get("rolledup") else process["pid"]
            stream = streams[pid, process["cmd"]]
            if not stream or stream[-1][0] != number:
                stream.append((number, process))
    return streams


def cpu_seconds_of(samples: list[list[dict[str, Any]]]) -> float:
    """CPU seconds between the first sample and the last, by sonalyze's rule since version 0.7."""
    seconds = 0.0
    for stream in streams_of(samples).values():
        first, process = stream[0]
        if first:
            seconds += process.get("cpu_avg", 0.0) / 100 * EVERY
        for (before, old), (after, new) in pairwise(stream):
            growth = new.get("cpu_time", 0) - old.get("cpu_time", 0)
            # It makes a rate of the growth, for one interval.
            seconds += max(growth, 0) / (after - before)
    return seconds


class ShellJob:
    """A shell and what it starts: its samples, and the CPU seconds that its processes used."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.node = PinnedNode(path)
        self.agent = SampleAgent(SampleSettings(**settings), frozenset({"sonar"}))
        self.used = 0.0
        self.profiles = [Profile()]
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.samples: list[list[dict[str, Any]]] = []
        self._waited_for = 0

    def sample(self) -> None:
        """Have the shell use 3 s, and take a sample after 30 s."""
        if self.samples:
            self.node.still.passed += EVERY
            self.used += 3
        number = len(self.samples)
        self.node.process(
            42, cgroup=JOB, command="bash", utime=300 * number, children=self._waited_for * 100
        )
        self.node.pin()
        attributes: dict[str, Any] = {}
        for profile, message in encode_each(self.agent.sample(self.node), self.profiles, self.node):
            attributes = validate("SampleEnvelope", message.body)["data"]["attributes"]
            self.sent.setdefault(profile.receiver, []).append(attributes["jobs"])
        (job,) = attributes["jobs"]
        assert job["job"] == 7
        self.samples.append(job["processes"])

    def ends(self, command: str, seconds: int, processes: int = 1, *, waited_for: bool) -> None:
        """Have processes end that used so much and were not there at a sample."""
        key = EndedKey(0, 0, 7, 0, 1001, 0, command.encode())
        self.node.has_ended(key, processes, seconds)
        self.used += seconds
        self._waited_for += seconds * waited_for

    def run(self) -> None:
        """Play all that makes a difference."""
        self.sample()
        # Children that the shell waits for, in its time of children; and orphans, in nobody's.
        self.ends("gcc", 6, 40, waited_for=True)
        self.ends("curl", 4, 2, waited_for=False)
        self.sample()
        self.ends("gcc", 9, waited_for=True)
        self.sample()
        # A child that is sampled four times, the last time as a zombie, before it is waited for.
        start = round(self.node.still.uptime() * 100)
        for ticks in (1200, 2400, 3000):
            self.node.process(
                43, cgroup=JOB, command="solver", ppid=42, utime=ticks, start=start,
                state="Z" if ticks == 3000 else "R",
            )  # fmt: skip
            self.sample()
        self.used += 30
        self.node.end(43)
        self._waited_for += 30
        self.node.has_ended(EndedKey(0, 0, 7, 0, 1001, 0, b"solver"), 1, 30)
        self.sample()
        self.sample()


@pytest.fixture
def told(tmp_path: Path) -> ShellJob:
    job = ShellJob(tmp_path, preset="jobanalyzer")
    job.run()
    return job


def test_each_cpu_second_of_a_job_counts_once(told: ShellJob) -> None:
    # Four streams are rounded to a second.
    assert cpu_seconds_of(told.samples) == pytest.approx(told.used, abs=2)


def test_processes_that_never_use_a_whole_second_count(tmp_path: Path) -> None:
    job = ShellJob(tmp_path, preset="jobanalyzer")
    job.sample()
    for number in range(40):
        # Each is sampled twice, with 0 or 0.4 s and with 0.7 s, and has used 0.8 s in the end.
        start = round(job.node.still.uptime() * 100)
        for pid, ticks in ((100 + number, number % 2 * 40), (99 + number, 70)):
            if pid >= 100:
                first = start if pid == 100 + number else start - EVERY * 100
                job.node.process(pid, cgroup=JOB, command="cc1", ppid=42, utime=ticks, start=first)
        if number > 1:
            job.node.end(98 + number)
            job.ends("cc1", 1, waited_for=False)
            job.used -= 0.2
            key = EndedKey(0, 0, 7, 0, 1001, 0, b"cc1")
            job.node.ended[key] = job.node.ended[key]._replace(
                runtime=job.node.ended[key].runtime - 200_000_000
            )
        job.sample()
    alive = 0.4 + 0.7  # of the last two
    assert cpu_seconds_of(job.samples) == pytest.approx(job.used + alive, abs=2)


def test_without_what_ended_orphans_are_lost_and_children_count_twice(tmp_path: Path) -> None:
    # Why the preset adds what ended, instead of leaving it out: this is the other way.
    job = ShellJob(tmp_path)
    job.run()
    left_out = [
        [process for process in sample if not process["cmd"].endswith("<ended>")]
        for sample in job.samples
    ]
    solver_twice, orphans_never = 30, 4
    assert cpu_seconds_of(left_out) == pytest.approx(job.used + solver_twice - orphans_never, abs=5)
    # With records of what ended, but without their time, it is the same.
    assert cpu_seconds_of(job.samples) == cpu_seconds_of(left_out)


def test_each_process_is_one_stream(told: ShellJob) -> None:
    streams = streams_of(told.samples)
    assert len({pid for pid, _ in streams}) == len(streams)
    assert sorted(command for _, command in streams) == ["bash", "curl", "gcc", "solver"]
    # From its first on, a stream has a record in each sample, whether more has ended or not.
    for stream in streams.values():
        numbers = [number for number, _ in stream]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert not any(process.get("rolledup") for stream in told.samples for process in stream)


def test_where_nothing_that_ended_is_counted_parents_have_the_time(tmp_path: Path) -> None:
    node = PinnedNode(tmp_path)
    node.process(42, cgroup=JOB, command="make", utime=100, children=900)
    node.pin()
    (node.directory / "ended").unlink()
    agent = SampleAgent(SampleSettings(preset="jobanalyzer"), frozenset({"sonar"}))
    (message,) = encode(agent.sample(node), "sonar", node)
    attributes = validate("SampleEnvelope", message.body)["data"]["attributes"]
    assert attributes["jobs"][0]["processes"][0]["cpu_time"] == 10


def test_what_ended_is_forgotten_after_its_job(told: ShellJob) -> None:
    told.node.end(42)
    sizes: list[int] = []
    for _ in range(5):
        told.node.still.passed += EVERY
        told.node.pin()
        (message,) = encode(told.agent.sample(told.node), "sonar", told.node)
        sizes.append(message.body.count(b'"cmd":'))
    assert sizes == [0] * 5
    # As much as a new job: its counters begin at 0.
    told.ends("gcc", 5, waited_for=False)
    told.samples.clear()
    told.node.still.passed += EVERY
    told.sample()
    assert [process["cpu_time"] for process in told.samples[0] if process["cmd"] == "gcc"] == [5]


def test_what_ends_now_and_then_begins_streams_of_its_own(tmp_path: Path) -> None:
    # Outside of jobs and without a group nothing lives on between: a counter that fell would lose.
    node = PinnedNode(tmp_path)
    agent = SampleAgent(SampleSettings(preset="jobanalyzer"), frozenset({"sonar"}))
    samples: list[list[dict[str, Any]]] = []
    seconds = 0.0
    for number in range(12):
        node.still.passed += EVERY
        if number % 4 == 1:
            node.has_ended(
                EndedKey(1, 1, 0, 0, 1001, 0, b"cron"), processes=1, runtime=9 - number / 2
            )
            seconds += 9 - number / 2
        node.pin()
        (message,) = encode(agent.sample(node), "sonar", node)
        jobs = validate("SampleEnvelope", message.body)["data"]["attributes"].get("jobs", [])
        samples.append([process for job in jobs for process in job["processes"]])
    assert cpu_seconds_of(samples) == pytest.approx(seconds, abs=0.1)
    assert len(streams_of(samples)) == 3


def test_many_names_make_few_streams(tmp_path: Path) -> None:
    job = ShellJob(tmp_path, preset="jobanalyzer")
    job.sample()
    for number in range(300):
        job.ends(f"conftest{number}", 1, waited_for=False)
        if number % 30 == 29:
            job.sample()
    assert len(job.samples[-1]) == 52
    assert cpu_seconds_of(job.samples) == pytest.approx(job.used, abs=2)


def test_streams_are_no_processes_of_the_jobs_points(tmp_path: Path) -> None:
    job = ShellJob(tmp_path, preset="jobanalyzer")
    job.run()
    agent = SampleAgent(SampleSettings(preset="jobanalyzer"), frozenset({"line"}))
    list(agent.sample(job.node))
    job.ends("gcc", 3, waited_for=False)
    job.node.still.passed += EVERY
    job.node.pin()
    values = {p.name: p.value for p in agent.sample(job.node) if isinstance(p, Point)}
    assert (values["job_processes"], values["job_cpu_util"]) == (1, 10.0)


def test_a_rolled_up_sample_keeps_streams_apart(tmp_path: Path) -> None:
    job = ShellJob(tmp_path, preset="jobanalyzer", rollup=True)
    for pid in (50, 51):
        job.node.process(pid, cgroup=JOB, command="gcc", ppid=1)
    job.sample()
    job.ends("gcc", 5, waited_for=False)
    job.sample()
    found = [process for process in job.samples[-1] if process["cmd"] == "gcc"]
    told = {process.get("rolledup", 0): process.get("cpu_time", 0) for process in found}
    assert told == {0: 5, 1: 0}


def test_an_ended_process_has_a_last_record_without_use(told: ShellJob) -> None:
    # sonalyze repeats the last record of a stream for a minute in the sums of the job.
    last = [[each for each in sample if each["pid"] == 43] for sample in told.samples]
    ended = next(number for number, found in enumerate(last) if found and not last[number + 1])
    (closing,) = last[ended]
    (before,) = last[ended - 1]
    used = {"resident_memory", "virtual_memory", "cpu_avg", "cpu_util"}
    assert closing == {name: value for name, value in before.items() if name not in used}
    assert closing["cpu_time"] == 30


def test_each_sink_has_the_records_for_its_receiver(tmp_path: Path) -> None:
    def play(receivers: set[str], **settings: Any) -> dict[str, str]:
        directory = tmp_path / f"{len([*tmp_path.iterdir()])}"
        directory.mkdir()
        job = ShellJob(directory, **settings)
        job.agent.receivers = frozenset(receivers)
        job.profiles = [Profile(receiver=receiver) for receiver in sorted(receivers)]
        job.run()
        # The pids of ended processes are new at each start.
        return {
            to: re.sub(r'"pid": [0-9]{5,}', "", json.dumps(sent)) for to, sent in job.sent.items()
        }

    mixed = play({"", "jobanalyzer"})
    assert mixed["jobanalyzer"] == play({"jobanalyzer"})["jobanalyzer"]
    assert mixed[""] == play({""})[""]
    assert mixed[""] != mixed["jobanalyzer"]
    assert play({"", "jobanalyzer"}, preset="jobanalyzer")[""] == mixed["jobanalyzer"]
