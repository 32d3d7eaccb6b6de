"""The labelled jobs of tests/data/jobs: their series, and the findings next to the labels.

`python -m tests.support.labelled_jobs` prints precision and recall by rule.
"""

from __future__ import annotations

import random
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.line_keys import MOUNT, NETWORK, part_name
from ccagent.views.amounts import GB
from ccagent.views.job.figures import JobFacts, JobSeries, NodeHardware
from ccagent.views.job.measuring import measure_job
from ccagent.views.job.mounts import JobMounts, JobPartSums
from ccagent.views.job.rules import JobReport, make_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIRECTORY = Path(__file__).parent.parent / "data/jobs"
PARTS = ("foreign", "held_out", "tuned")
_STEP = 60
_NOISE = 0.01
_MB = 1e6
_SIZE = re.compile(r"(\d+)x([\d.]+) ([\d.]+)G ([\d.]+)h/([\d.]+)h (\w+)")


class LabelledJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A described job and the advice for it. README.md in tests/data/jobs explains the keys."""

    name: str
    size: str
    advice: list[str]
    reason: str
    cpu: str | list[str]
    rss: float
    seed: int = 1
    gpu: list[Any] = []
    gpu_memory: float = 50.0
    sms: float | None = None
    watts: float = 500.0
    pressure: float = 0.1
    io: float = 0.5
    oom: int = 0
    disk: float = 0.0
    net: float = 0.0
    mounts: list[str] = []
    hardware: str = ""
    jobname: str = "run.sh"
    terminal: bool | None = None
    exclusive: bool = False
    load: float | None = None
    kept: float = 1.0
    asked: int | None = None
    says: list[str] = []
    never: list[str] = []
    also: list[str] = []

    def report(self) -> JobReport:
        """Return the report on the job's series, by way of all code between series and report."""
        return _Simulation(self).report()


def load(part: str) -> list[LabelledJob]:
    """Return the labelled jobs of a file. Each has a seed of its own."""
    table = tomllib.loads((DIRECTORY / f"{part}.toml").read_text())
    return [
        msgspec.convert({"seed": number} | one, LabelledJob)
        for number, one in enumerate(table.get("job", []), 1)
    ]


class _Simulation:
    """The series of a labelled job, one value a minute."""

    def __init__(self, job: LabelledJob) -> None:
        self._job = job
        self._random = random.Random(job.seed)
        found = _SIZE.fullmatch(job.size)
        assert found is not None, job.size
        nodes, cores, memory, hours, limit, self._state = found.groups()
        self._nodes = tuple(f"n{number + 1}" for number in range(int(nodes)))
        self._cores = float(cores)
        self._memory = float(memory) * GB
        self._elapsed, self._limit = float(hours) * 3600, float(limit) * 3600
        self._count = max(1, int(self._elapsed // _STEP))
        self._start = 1_800_000_000

    def report(self) -> JobReport:
        job, count = self._job, len(self._nodes)
        is_running = self._state == "RUNNING"
        stop = self._start + int(self._elapsed)
        details = StoredJobDetails(
            name=job.jobname, time_limit=int(self._limit), cores=int(self._cores) * count,
            memory=int(self._memory) * count,
            gpus=sum(len(self._cards(name)) for name in self._nodes),
            cards={name: cards for name in self._nodes if (cards := self._cards(name))},
            has_terminal=job.terminal, is_exclusive=job.exclusive, asked_cores=job.asked,
        )  # fmt: skip
        facts = JobFacts(
            job="4711", state=self._state, start=self._start, stop=None if is_running else stop,
            nodes=self._nodes, details=details,
        )  # fmt: skip
        hardware = dict.fromkeys(self._nodes, _hardware(job.hardware))
        figures = measure_job(facts, self._series(), stop, hardware)
        return make_report(figures, mounts=self._mounts())

    def _cards(self, node: str) -> list[str]:
        return [f"card{number}" for number in range(len(self._uses_of_cards(node)))]

    def _uses_of_cards(self, node: str) -> Sequence[str]:
        found = self._job.gpu
        if found and isinstance(found[0], list):
            return list(found[self._nodes.index(node)])
        return list(found)

    def _series(self) -> Iterator[JobSeries]:
        job = self._job
        for number, node in enumerate(self._nodes):
            cpu = job.cpu if isinstance(job.cpu, str) else job.cpu[number]
            peak = job.rss * GB
            held = [peak * min(1.0, 0.2 + step / self._count) for step in range(self._count)]
            rows: list[tuple[str, str, list[float]]] = [
                ("job_cpu_util", "", [100 * one for one in self._row(cpu, self._cores)]),
                ("job_mem_rss", "", held),
                ("job_mem_limit", "", [self._memory] * self._count),
                ("job_pressure_memory", "", self._row(str(job.pressure), 100)),
                ("job_pressure_io", "", self._row(str(job.io), 100)),
                ("job_oom_kills", "", [0.0] * (self._count - 1) + [float(job.oom)]),
                ("job_io_read", "", [job.disk * _MB] * self._count),
            ]
            if job.load is not None:
                rows.append(("cpu_load", "", self._row(str(job.load), 1e6)))
            for card, use in zip(self._cards(node), self._uses_of_cards(node), strict=True):
                if use != "unknown":
                    rows.append(("acc_utilization", card, self._row(use, 100)))
                rows.append(("acc_mem_used", card, [job.gpu_memory * GB * 0.8] * self._count))
                rows.append(("acc_mem_share", card, [job.gpu_memory] * self._count))
                if job.sms is not None:
                    rows.append(("acc_sm_active", card, self._row(str(job.sms), 100)))
                    rows.append(("acc_power", card, [job.watts] * self._count))
                    rows.append(("acc_power_limit", card, [700.0] * self._count))
            is_kept = [self._random.random() < job.kept for _ in range(self._count)]
            for metric, card, values in rows:
                kept = [
                    value if is_there else None
                    for value, is_there in zip(values, is_kept, strict=True)
                ]
                yield JobSeries(metric, node, card, self._start, _STEP, kept)

    def _row(self, phases: str, most: float) -> list[float]:
        """Return the values of phases such as `32@0.4 1@0.6`, with noise."""
        row: list[float] = []
        reached = 0.0
        for phase in phases.split():
            value, _, share = phase.partition("@")
            reached += float(share or 1)
            count = round(reached * self._count) - len(row)
            row += [
                min(most, max(0.0, float(value) * self._random.gauss(1, _NOISE)))
                for _ in range(count)
            ]
        assert len(row) == self._count, phases
        return row

    def _mounts(self) -> JobMounts | None:
        sums = JobPartSums()
        for node in self._nodes:
            for text in self._job.mounts:
                point, kind, *more = text.split()
                rates = {
                    key: float(value.removesuffix("/s").removesuffix("MB"))
                    for key, _, value in (one.partition("=") for one in more)
                }
                name = part_name({"mountpoint": point, "fstype": kind, "source": "x"}, MOUNT)
                amounts = {
                    "job_fs_read": rates.get("read", 0.0) * _MB,
                    "job_fs_write": rates.get("write", 0.0) * _MB,
                    "job_fs_reads": rates.get("calls", 0.0),
                    "job_fs_metadata": rates.get("meta", 0.0),
                }
                for metric, rate in amounts.items():
                    sums.add(node, name, metric, rate * self._elapsed)
                if "ms" in rates:
                    sums.add(node, name, "job_fs_read_time", 1000 * rates["ms"])
            if self._job.net:
                name = part_name({"layer": "socket", "proto": "tcp", "loopback": "no"}, NETWORK)
                sums.add(node, name, "job_net_received", self._job.net * _MB * self._elapsed)
        return sums.finish()


def _hardware(text: str) -> NodeHardware:
    """Return the hardware of `32 cores 190G 4 cards`."""
    found = re.fullmatch(r"(?:(\d+) cores (\d+)G(?: (\d+) cards)?)?", text)
    assert found is not None, text
    cores, memory, cards = found.groups()
    return NodeHardware(
        cores=float(cores) if cores else None, memory=float(memory) * GB if memory else None,
        cards=int(cards) if cards else None,
    )  # fmt: skip


class Compared(NamedTuple):
    """A job, its report, and how they differ. wrong: rules that a person would not show."""

    job: LabelledJob
    report: JobReport

    @property
    def shown(self) -> set[str]:
        return {one.rule for one in self.report.findings if one.level != "ok"}

    @property
    def wrong(self) -> set[str]:
        return self.shown - set(self.job.advice) - set(self.job.also)

    @property
    def missing(self) -> set[str]:
        return set(self.job.advice) - self.shown

    @property
    def texts(self) -> list[str]:
        """Return complaints about texts that must, or must not be in the findings."""
        text = "\n".join(one.text for one in self.report.findings)
        lacks = [f"lacks {one!r}" for one in self.job.says if one not in text]
        return lacks + [f"has {one!r}" for one in self.job.never if one in text]


def compare(part: str) -> list[Compared]:
    """Return all jobs of a file with their reports."""
    return [Compared(job, job.report()) for job in load(part)]


def count_by_rule(found: Sequence[Compared]) -> dict[str, tuple[int, int, int]]:
    """Return by rule how often it was right, wrong, and missing."""
    rules = sorted({rule for one in found for rule in one.shown | set(one.job.advice)})
    return {
        rule: (
            sum(rule in one.shown - one.wrong for one in found),
            sum(rule in one.wrong for one in found),
            sum(rule in one.missing for one in found),
        )
        for rule in rules
    }


def _describe(counts: tuple[int, int, int]) -> str:
    right, wrong, missing = counts
    shares = [
        f"{right / total:.2f}" if (total := right + other) else "-" for other in (wrong, missing)
    ]
    return f"{right:5} {wrong:5} {missing:7}   {shares[0]:>9} {shares[1]:>6}"


def main() -> int:
    """Print precision and recall of each file, and each difference. Return the exit status."""
    parts = {part: compare(part) for part in PARTS}
    for part, found in parts.items():
        counts = list(count_by_rule(found).values())
        total = [sum(one) for one in zip(*counts, strict=True)] or [0, 0, 0]
        print(f"{part:16} {len(found):3} jobs  right wrong missing   precision recall")
        print(f"{'':26}{_describe((total[0], total[1], total[2]))}")
    print("\nrule                      right wrong missing   precision recall")
    every = [one for found in parts.values() for one in found]
    for rule, three in count_by_rule(every).items():
        print(f"{rule:26}{_describe(three)}")
    bad = [one for one in every if one.wrong or one.missing or one.texts]
    for one in bad:
        print(f"\n{one.job.name}: wrong {one.wrong or '-'}, missing {one.missing or '-'},"
              f" {one.texts}")  # fmt: skip
        for finding in one.report.findings:
            print(f"    {finding.level} {finding.text} [{finding.rule}]")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
