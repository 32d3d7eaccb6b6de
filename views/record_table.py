"""Tables of any agent's records: a node's sample, metrics, Slurm's jobs, a node's description."""

from __future__ import annotations

import math
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.slurm import tres
from ccagent.machine.user_names import local_users
from ccagent.records.envelopes import ClusterEnvelope, JobsEnvelope, SampleEnvelope, SysinfoEnvelope
from ccagent.records.json_encoding import JsonArray
from ccagent.records.message import JsonRecord, LineRecord, Record
from ccagent.records.points import Point
from ccagent.views.amounts import short_number, short_pair, short_percent, short_size, short_time
from ccagent.views.terminal import Style, TableColumn, clean, cut, format_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.records.envelopes import (
        ClusterAttributes,
        ClusterNodes,
        ClusterPartition,
        JobsAttributes,
        SampleAttributes,
        SampleJob,
        SampleProcess,
        SampleProcessGpu,
        SlurmJob,
        SysinfoAttributes,
        SysinfoGpuCard,
        SysinfoSoftwareVersion,
    )


_MOST_ITEMS = 1000


def format_records(
    records: Iterable[Record], units: Mapping[str, str], width: int, style: Style
) -> list[str]:
    """Return the lines of all records of a sample. units: by metric name."""
    lines: list[str] = []
    points: list[Point] = []
    for record in records:
        if isinstance(record, Point):
            points.append(record)
            continue
        try:
            found = _format_one(record, width, style)
        except OverflowError as error:
            found = [clean(f"{record.label()}: not shown: a number is impossible: {error}")]
        lines += [""] * bool(lines) + found
    if points:
        lines += [""] * bool(lines) + format_points(points, units, width, style)
    return [line if "\x1b" in line else cut(line, width) for line in lines]


def _format_one(record: Record, width: int, style: Style) -> list[str]:
    match record:
        case SampleEnvelope() if record.data is not None:
            return format_sample(record.data.attributes, width, style)
        case SysinfoEnvelope() if record.data is not None:
            return format_sysinfo(record.data.attributes, width, style)
        case JobsEnvelope() if record.data is not None:
            return format_jobs(record.data.attributes, width, style)
        case ClusterEnvelope() if record.data is not None:
            return format_cluster(record.data.attributes, width, style)
        case SampleEnvelope() | SysinfoEnvelope() | JobsEnvelope() | ClusterEnvelope():
            return [clean(error.detail) for error in record.errors]
        case JsonArray():
            return _format_items(record, width, style)
        case LineRecord():
            return [clean(record.encode_line()[1])]
        case JsonRecord():
            return [clean(record.encode_json()[1].decode())]
        case _:
            return [clean(record.label())]


def _format_items(array: JsonArray, width: int, style: Style) -> list[str]:
    """Return a table of an array of flat objects, with one column per key."""
    head = clean(f"{array.kind}: {len(array.items)} records")
    if not array.items:
        return [head]
    names = list(dict.fromkeys(name for item in array.items for name in item))
    columns = [
        TableColumn(clean(name).upper(), partial(_show_item, name), rank=place, most=24)
        for place, name in enumerate(names)
    ]
    return [head, "", *format_rows(columns, array.items[:_MOST_ITEMS], width, style)]


def _show_item(name: str, item: dict[str, Any]) -> str:
    return "-" if item.get(name) is None else str(item[name])


_MOST_LINES = 50
_MOST_JOBS = 20
_MOST_PROCESSES = 20
_FIRST_USER = 1000
"""The first uid of ordinary users, as for `exclude-system-jobs`."""


class _Row(NamedTuple):
    """A process with its job and user."""

    job: str
    user: str
    process: SampleProcess


class _Group(NamedTuple):
    """The processes of one line. used, limit: memory of the control group in B."""

    name: str
    user: str
    rows: list[_Row]
    used: float | None = None
    limit: float | None = None

    @property
    def processes(self) -> list[SampleProcess]:
        return [row.process for row in self.rows]

    @property
    def cpu(self) -> float:
        return sum(one.cpu_util for one in self.processes)

    @property
    def memory(self) -> float:
        if self.used is not None:
            return self.used
        return 1024.0 * sum(one.resident_memory for one in self.processes)

    @property
    def cards(self) -> list[SampleProcessGpu]:
        return [use for one in self.processes for use in one.gpus]

    @property
    def busiest(self) -> str:
        rank = attrgetter("cpu_util", "resident_memory")
        return max(self.processes, key=rank).cmd if self.processes else ""


_JOBS: tuple[TableColumn[_Group], ...] = (
    TableColumn("JOB", lambda group: group.name),
    TableColumn("USER", lambda group: group.user, most=12),
    TableColumn("PROC", lambda group: str(sum(1 + one.rolledup for one in group.processes)), True,
                2),
    TableColumn("CPU%", lambda group: short_percent(group.cpu), True),
    TableColumn("MEM", lambda group: short_pair(group.memory, group.limit), True),
    TableColumn("MEM%", lambda group: short_percent(100 * group.memory / group.limit
                                                    if group.limit else None), True, 1),
    TableColumn("GPU", lambda group: str(len({use.index for use in group.cards}) or "-"), True, 3),
    TableColumn("GPU%", lambda group: short_percent(_sum_gpu(group.cards)), True, 1),
    TableColumn("READ", lambda group: _sum_kib(group.processes, "data_read"), True, 4),
    TableColumn("WRITE", lambda group: _sum_kib(group.processes, "data_written"), True, 4),
    TableColumn("BUSIEST", lambda group: group.busiest),
)  # fmt: skip


_PROCESSES: tuple[TableColumn[_Row], ...] = (
    TableColumn("PID", lambda row: str(row.process.pid), True),
    TableColumn("USER", lambda row: row.user, most=12),
    TableColumn("JOB", lambda row: "-" if row.job.startswith("(") else row.job, True, 2, most=12),
    TableColumn("CPU%", lambda row: short_percent(row.process.cpu_util), True),
    TableColumn("MEM", lambda row: _sum_kib([row.process], "resident_memory"), True),
    TableColumn("THR", lambda row: str(row.process.num_threads + 1), True, 4),
    TableColumn("CPU TIME", lambda row: short_time(row.process.cpu_time), True, 3),
    TableColumn("GPU%", lambda row: short_percent(_sum_gpu(row.process.gpus)), True, 5),
    TableColumn("READ", lambda row: _sum_kib([row.process], "data_read"), True, 6),
    TableColumn("WRITE", lambda row: _sum_kib([row.process], "data_written"), True, 6),
    TableColumn("COMMAND", lambda row: row.process.cmd),
)


def _sum_gpu(uses: Sequence[SampleProcessGpu]) -> float | None:
    return sum(use.gpu_util for use in uses) if uses else None


def _sum_kib(processes: Iterable[SampleProcess], field: str) -> str:
    """Return the sum of a field in KiB."""
    return short_size(1024.0 * sum(getattr(one, field) for one in processes))


def format_sample(sample: SampleAttributes, width: int, style: Style) -> list[str]:
    """Return a sample in at most 50 lines."""
    groups = _group(sample.jobs)
    lines = [_describe_node(sample)]
    jobs = sorted((one for one in groups if not one.name.startswith("(")), key=lambda one: -one.cpu)
    others = sorted(
        (one for one in groups if one.name.startswith("(")),
        key=lambda one: (one.name != "(no job)", -one.cpu),
    )
    shown = [*jobs[:_MOST_JOBS], *others[: max(2, _MOST_JOBS - len(jobs))]]
    lines += ["", *format_rows(_JOBS, shown, width, style)]
    left = len(jobs) + len(others) - len(shown)
    if left:
        lines.append(f"and {left} more jobs and users")
    lines.append("")
    room = _MOST_LINES - len(lines) - 2 - bool(sample.errors)
    return lines + _format_processes(groups, room, width, style) + _note_errors(sample)


def _group(jobs: Iterable[SampleJob]) -> list[_Group]:
    """Return one group per job, per user without a job, and for the system."""
    found: dict[tuple[str, str], _Group] = {}
    # one lookup per name
    of_system = cache(is_system_user)
    for job in jobs:
        if not job.epoch:
            name, user = str(job.job), job.user
        elif of_system(job.user):
            name, user = "(system)", "-"
        else:
            name, user = "(no job)", job.user
        cgroup = job.cgroup
        group = found.get((name, user)) or _Group(name, user, [])
        if cgroup is not None:
            group = group._replace(
                used=1024.0 * cgroup.rss_memory if cgroup.rss_memory else None,
                limit=1024.0 * cgroup.memory_limit if cgroup.memory_limit else None,
            )
        group.rows.extend(_Row(name, job.user, one) for one in job.processes)
        found[name, user] = group
    return list(found.values())


def is_system_user(user: str) -> bool:
    """Return whether /etc/passwd has the user as a system user."""
    return any(name == user and uid < _FIRST_USER for uid, name in local_users().items())


def _describe_node(sample: SampleAttributes) -> str:
    system = sample.system
    parts = [
        f"{sample.node} of {sample.cluster}  {_show_time(sample.time)}",
        f"load {system.load1:g} {system.load5:g} {system.load15:g}",
        f"{len(system.cpus)} CPUs",
        f"memory {short_size(1024.0 * system.used_memory)} used",
    ]
    if system.gpus:
        busy = sum(1 for card in system.gpus if card.ce_util)
        parts.append(f"{len(system.gpus)} GPUs, {busy} busy")
    return clean("  ".join(parts))


def _format_processes(groups: list[_Group], room: int, width: int, style: Style) -> list[str]:
    rows = [row for group in groups for row in group.rows]
    rows.sort(key=lambda row: (-row.process.cpu_util, -row.process.resident_memory,
                               row.process.pid))  # fmt: skip
    count = max(1, min(room, _MOST_PROCESSES))
    lines = format_rows(_PROCESSES, rows[:count], width, style)
    rest = [row.process for row in rows[count:]]
    if rest:
        cpu = short_percent(sum(one.cpu_util for one in rest))
        memory = _sum_kib(rest, "resident_memory")
        lines.append(f"and {len(rest)} more processes: {cpu} % CPU, {memory} memory")
    return lines


def _note_errors(sample: SampleAttributes) -> list[str]:
    count = len(sample.errors)
    if not count:
        return []
    more = f"; and {count - 1} more" * (count > 1)
    return [clean(f"incomplete: {sample.errors[0].detail}{more}")]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class _PointRow(NamedTuple):
    """The values of a metric and scope."""

    name: str
    unit: str
    part: str
    values: list[float]

    def show(self, reduce: Callable[[list[float]], float], least: int = 2) -> str:
        return short_number(reduce(self.values)) if len(self.values) >= least else ""


_METRICS: tuple[TableColumn[_PointRow], ...] = (
    TableColumn("METRIC", lambda row: row.name),
    TableColumn("UNIT", lambda row: row.unit, rank=1),
    TableColumn("OF", lambda row: row.part, most=40),
    TableColumn("VALUE", lambda row: row.show(_mean, 1) or "-", True),
    TableColumn("MIN", lambda row: row.show(min), True, 3),
    TableColumn("MAX", lambda row: row.show(max), True, 3),
    TableColumn("COUNT", lambda row: row.show(len), True, 2),
)
_OWN = frozenset({"cluster", "hostname", "type", "type-id", "stype", "stype-id"})


def format_points(
    points: Iterable[Point], units: Mapping[str, str], width: int, style: Style
) -> list[str]:
    """Return one line per metric and scope type, with the mean over the scope ids.

    units: by metric. Values of jobs, and values with additional tags, have a line each.
    """
    found: dict[tuple[str, str], list[float]] = {}
    place = ""
    for point in points:
        place = place or f"{point.tags.get('hostname', '')} of {point.tags.get('cluster', '')}"
        values = found.setdefault((point.name, _describe_part(point)), [])
        try:
            value = float(point.value)
        except OverflowError:
            continue
        if math.isfinite(value):  # line protocol also omits non-finite values
            values.append(value)
    rows = [_PointRow(name, units.get(name, ""), part, found[name, part])
            for name, part in sorted(found)]  # fmt: skip
    if not rows:
        return ["no values"]
    return [clean(place), "", *format_rows(_METRICS, rows, width, style)]


def _describe_part(point: Point) -> str:
    tags = point.tags
    kind, part = tags.get("type", "node"), tags.get("stype", "")
    text = kind
    if part:
        text = f"{part} {tags.get('stype-id', '')}"
        if kind != "node":
            text = f"{kind} {tags.get('type-id', '')} {text}"
    others = [f"{name}={value}" for name, value in sorted(tags.items()) if name not in _OWN]
    return " ".join([text, *others])


def _resources(job: SlurmJob) -> str:
    return job.allocated_resources or job.requested_resources


def _limit(job: SlurmJob) -> str:
    """Return the time limit: 0 unset, 1 infinite, n + 2 for n seconds."""
    limit = job.time_limit
    return short_time(limit - 2) if limit > 1 else "none" if limit == 1 else "-"


_SLURM_JOBS: tuple[TableColumn[SlurmJob], ...] = (
    TableColumn("JOB", lambda job: str(job.job_id), True),
    TableColumn("USER", lambda job: job.user_name, most=12),
    TableColumn("PART", lambda job: job.partition, rank=3, most=10),
    TableColumn("STATE", lambda job: job.job_state, most=13),
    TableColumn("NODES", lambda job: str(tres.count(_resources(job), "node")
                                         or job.requested_node_count), True, 2),
    TableColumn("CPUS", lambda job: str(tres.count(_resources(job), "cpu") or job.requested_cpus),
                True),
    TableColumn("GPUS", lambda job: str(tres.count_gpus(_resources(job)) or "-"), True, 4),
    TableColumn("MEM", lambda job: short_size(1024.0 * tres.total_memory(_resources(job)) or None),
                True, 1),
    TableColumn("LIMIT", _limit, True, 5),
    TableColumn("START", lambda job: _show_time(job.start_time) or "-", rank=6),
    TableColumn("NODELIST", lambda job: ",".join(job.nodes), rank=7, most=20),
    TableColumn("NAME", lambda job: job.job_name),
)  # fmt: skip
_STATES: tuple[TableColumn[ClusterNodes], ...] = (
    TableColumn("STATE", lambda one: "+".join(one.states)),
    TableColumn("NODES", lambda one: ",".join(one.names)),
)
_PARTITIONS: tuple[TableColumn[ClusterPartition], ...] = (
    TableColumn("PARTITION", lambda one: one.name),
    TableColumn("NODES", lambda one: ",".join(one.nodes)),
)


def _show_time(time: str) -> str:
    return time[:19].replace("T", " ")


def format_jobs(jobs: JobsAttributes, width: int, style: Style) -> list[str]:
    """Return one line per job. Steps are only counted."""
    own = [job for job in jobs.slurm_jobs if not job.job_step]
    steps = len(jobs.slurm_jobs) - len(own)
    head = clean(f"{jobs.cluster}  {_show_time(jobs.time)}  {len(own)} jobs, {steps} steps")
    return [head, "", *format_rows(_SLURM_JOBS, own, width, style)] if own else [head]


def format_cluster(cluster: ClusterAttributes, width: int, style: Style) -> list[str]:
    """Return the numbers of nodes by state and by partition."""
    return [
        clean(f"{cluster.cluster}  {_show_time(cluster.time)}"),
        "",
        *format_rows(_STATES, cluster.nodes, width, style),
        "",
        *format_rows(_PARTITIONS, cluster.partitions, width, style),
    ]


_CARDS: tuple[TableColumn[SysinfoGpuCard], ...] = (
    TableColumn("GPU", lambda card: str(card.index), True),
    TableColumn("MODEL", lambda card: f"{card.manufacturer} {card.model}".strip()),
    TableColumn("MEM", lambda card: short_size(1024.0 * card.memory or None), True),
    TableColumn("LIMIT", lambda card: f"{card.power_limit}W" if card.power_limit else "-", True, 2),
    TableColumn("DRIVER", lambda card: card.driver, rank=1),
    TableColumn("ADDRESS", lambda card: card.address),
)
_SOFTWARE: tuple[TableColumn[SysinfoSoftwareVersion], ...] = (
    TableColumn("SOFTWARE", lambda one: one.name or one.key),
    TableColumn("VERSION", lambda one: one.version),
)


def format_sysinfo(info: SysinfoAttributes, width: int, style: Style) -> list[str]:
    """Return one line per part of the node."""
    cores = info.sockets * info.cores_per_socket
    threads = cores * info.threads_per_core
    facts = {
        "node": f"{info.node} of {info.cluster}",
        "system": f"{info.os_name} {info.os_release} {info.architecture}",
        "CPU": info.cpu_model or "unknown",
        "cores": f"{cores} in {info.sockets} sockets, {threads} threads",
        "memory": f"{short_size(1024.0 * info.memory)}, {info.numa_nodes} NUMA nodes",
        "GPUs": str(len(info.cards)),
    }
    lines = [cut(f"{name:8} {clean(text)}", width) for name, text in facts.items()]
    if info.cards:
        lines += ["", *format_rows(_CARDS, info.cards, width, style)]
    if info.software:
        lines += ["", *format_rows(_SOFTWARE, info.software, width, style)]
    return lines
