"""Lustre's servers and clients under the names of lustrefs-exporter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry
from ccagent.agents.lustre.jobstats.parser import parse
from ccagent.agents.lustre.jobstats.source import JobstatsSource
from ccagent.agents.lustre.jobstats.text_items import Target
from ccagent.agents.lustre.statistics.readings import read_statistics
from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge
from ccagent.exporter.lustrefs_tables import GROUPS, read_parameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.lustre.parameters import Parameter
    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_JOB = ("operation", "component", "target", "jobid")
_BYTES = {
    operation: (
        counter(f"lustre_job_{way}_samples_total",
                f"Total number of {way}s that have been recorded.", *_JOB),
        gauge(f"lustre_job_{way}_minimum_size_bytes", f"The minimum {way} size in bytes.", *_JOB),
        gauge(f"lustre_job_{way}_maximum_size_bytes", f"The maximum {way} size in bytes.", *_JOB),
        counter(f"lustre_job_{way}_bytes_total",
                f"The total number of bytes that have been {done}.", *_JOB),
    )
    for operation, way, done in (
        ("read_bytes", "read", "read"), ("write_bytes", "write", "written"),
    )
}  # fmt: skip
_OPERATIONS = counter(
    "lustre_job_stats_total",
    "Number of operations the filesystem has performed, recorded by jobstats.", *_JOB,
)  # fmt: skip
_LEFT_OUT = gauge(
    "ccagent_lustre_jobs_left_out",
    "Job ids in job_stats without series of their own: max-lustre-jobs is reached.",
)
_KINDS = {"obdfilter": "ost", "mdt": "mdt"}
_UNSAFE = re.compile(r"[^\x20-\x7e]")


class LustrefsCollector(Collector):
    """Statistics of targets, job_stats, LNet and mounts."""

    name = "lustre"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        limit = settings.time_limit.seconds
        self._source = JobstatsSource("auto", settings.lctl, "", limit)

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the parameters of Lustre. Raise NotHereError if the node has none."""
        errors: list[str] = []
        limit = self.settings.time_limit.seconds
        parameters = read_statistics(node, GROUPS, self.settings.lctl, limit, errors)
        for error in errors:
            self.warn(error)
        failure: CcagentError | None = None
        jobs: dict[Family, dict[Labels, float]] = {}
        try:
            jobs = self._read_jobs(node)
        except CcagentError as error:
            failure = error
        if failure is not None and not parameters:
            raise failure
        if parameters:
            yield from collect_parameters(parameters)
        for family, rows in jobs.items():
            yield family, rows.items()

    def _read_jobs(self, node: Node) -> dict[Family, dict[Labels, float]]:
        problems: list[CcagentError] = []
        limit = self.settings.max_lustre_jobs
        found: dict[Family, dict[Labels, float]] = {}
        seen: set[str] = set()
        left_out: set[str] = set()
        for text in self._source.texts(node, problems):
            target, kind = text.name, text.kind
            try:
                for item in parse(text.chunks, text.name, text.kind):
                    if isinstance(item, Target):
                        target, kind = item.name, item.kind
                    elif isinstance(item, JobstatsEntry) and not item.is_broken:
                        if item.job_id not in seen and len(seen) >= limit:
                            if len(left_out) < 10 * limit:
                                left_out.add(item.job_id)
                            continue
                        seen.add(item.job_id)
                        _add_entry(found, item, target, _KINDS.get(kind, kind))
            except CcagentError as error:
                problems.append(error)
        for problem in problems:
            self.warn(problem)
        found[_LEFT_OUT] = {(): len(left_out)}
        return found


def _add_entry(
    found: dict[Family, dict[Labels, float]], entry: JobstatsEntry, target: str, kind: str
) -> None:
    job = _UNSAFE.sub("\ufffd", entry.job_id)
    for name, stat in entry.stats.items():
        labels = (name, kind, target, job)
        families = _BYTES.get(name) if kind == "ost" else None
        if families is None:
            found.setdefault(_OPERATIONS, {})[labels] = stat.samples
            continue
        numbers = (stat.samples, stat.min, stat.max, stat.sum)
        for family, number in zip(families, numbers, strict=True):
            if number is not None:
                found.setdefault(family, {})[labels] = number


def collect_parameters(parameters: Iterable[Parameter]) -> Iterator[tuple[Family, Rows]]:
    """Yield the families for parameters in the format of `lctl get_param` and `lnetctl`.

    Raise NotHereError if no parameter has a sample.
    """
    found: dict[Family, dict[Labels, float]] = {}
    for name, value in parameters:
        for family, labels, number in read_parameter(name, value):
            # Of duplicates the first parameter is used.
            found.setdefault(family, {}).setdefault(labels, number)
    if not found:
        raise NotHereError("no statistics of Lustre on this node")
    for family, rows in found.items():
        yield family, rows.items()
