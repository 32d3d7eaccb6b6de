"""Tables of any agent's records: a node's sample, metrics, Slurm's jobs, a node's description."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm import tres
from ccagent.machine.user_names import local_users
from ccagent.records.envelopes import (
    ClusterEnvelope,
    JobsEnvelope,
    SampleEnvelope,
    SysinfoEnvelope,
)
from ccagent.records.json_array import JsonArray
from ccagent.records.message import JsonRecord, LineRecord
from ccagent.records.points import Point
from ccagent.views.amounts import short_number, short_pair, short_percent, short_size, short_time
from ccagent.views.terminal import TableColumn, clean, cut, format_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.records.envelopes import (
        ClusterAttributes,
        JobsAttributes,
        SampleAttributes,
        SampleJob,
        SampleProcess,
        SlurmJob,
        SysinfoAttributes,
    )
    from ccagent.records.message import Record
    from ccagent.views.terminal import Style


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
        lines += [""] * bool(lines) + _format_one(record, width, style)
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
    head = f"{array.kind}: {len(array.items)} records"
    if not array.items:
        return [head]
    names = list(dict.fromkeys(name for item in array.items for name in item))
    columns = [TableColumn(name.upper(), rank=place, most=24) for place, name in enumerate(names)]
    rows = [
        ["-" if item.get(name) is None else str(item.get(name)) for name in names]
        for item in array.items[:_MOST_ITEMS]
    ]
    return [head, "", *format_rows(columns, rows, width, style)]


_MOST_LINES = 50
_MOST_JOBS = 20
_MOST_PROCESSES = 20
_FIRST_USER = 1000
"""The first uid of ordinary users, as for `exclude-system-jobs`."""

_JOBS = (
    TableColumn("JOB"), TableColumn("USER", most=12), TableColumn("PROC", True, 2),
    TableColumn("CPU%", True), TableColumn("MEM", True), TableColumn("MEM%", True, 1),
    TableColumn("GPU", True, 3), TableColumn("GPU%", True, 1), TableColumn("READ", True, 4),
    TableColumn("WRITE", True, 4), TableColumn("BUSIEST"),
)  # fmt: skip
_PROCESSES = (
    TableColumn("PID", True), TableColumn("USER", most=12), TableColumn("JOB", True, 2, most=12),
    TableColumn("CPU%", True), TableColumn("MEM", True), TableColumn("THR", True, 4),
    TableColumn("CPU TIME", True, 3), TableColumn("GPU%", True, 5), TableColumn("READ", True, 6),
    TableColumn("WRITE", True, 6), TableColumn("COMMAND"),
)  # fmt: skip


class _Group(NamedTuple):
    """The processes of one line, and their users.

    used, limit: memory of the control group in B.
    """

    name: str
    user: str
    processes: list[SampleProcess]
    users: list[str]
    used: float | None = None
    limit: float | None = None

    @property
    def cpu(self) -> float:
        return sum(one.cpu_util for one in self.processes)

    @property
    def memory(self) -> float:
        if self.used is not None:
            return self.used
        return 1024.0 * sum(one.resident_memory for one in self.processes)


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
    lines += ["", *format_rows(_JOBS, [_job_cells(one) for one in shown], width, style)]
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
        group = found.get((name, user)) or _Group(name, user, [], [])
        if cgroup is not None:
            group = group._replace(
                used=1024.0 * cgroup.rss_memory if cgroup.rss_memory else None,
                limit=1024.0 * cgroup.memory_limit if cgroup.memory_limit else None,
            )
        group.processes.extend(job.processes)
        group.users.extend([job.user] * len(job.processes))
        found[name, user] = group
    return list(found.values())


def is_system_user(user: str) -> bool:
    """Return whether /etc/passwd has the user as a system user."""
    return any(name == user and uid < _FIRST_USER for uid, name in local_users().items())


def _describe_node(sample: SampleAttributes) -> str:
    system = sample.system
    parts = [
        f"{sample.node} of {sample.cluster}  {sample.time[:19].replace('T', ' ')}",
        f"load {system.load1:g} {system.load5:g} {system.load15:g}",
        f"{len(system.cpus)} CPUs",
        f"memory {short_size(1024.0 * system.used_memory)} used",
    ]
    if system.gpus:
        busy = sum(1 for card in system.gpus if card.ce_util)
        parts.append(f"{len(system.gpus)} GPUs, {busy} busy")
    return "  ".join(parts)


def _job_cells(group: _Group) -> list[str]:
    processes = group.processes
    cards = {use.index for one in processes for use in one.gpus}
    share = 100 * group.memory / group.limit if group.limit else None
    busiest = max(processes, key=lambda one: (one.cpu_util, one.resident_memory), default=None)
    return [
        group.name,
        group.user,
        str(sum(1 + one.rolledup for one in processes)),
        short_percent(group.cpu),
        short_pair(group.memory, group.limit),
        short_percent(share),
        str(len(cards)) if cards else "-",
        short_percent(sum(use.gpu_util for one in processes for use in one.gpus)) if cards else "-",
        short_size(1024.0 * sum(one.data_read for one in processes)),
        short_size(1024.0 * sum(one.data_written for one in processes)),
        busiest.cmd if busiest is not None else "",
    ]


def _format_processes(groups: list[_Group], room: int, width: int, style: Style) -> list[str]:
    each = [
        (group.name, user, one)
        for group in groups
        for user, one in zip(group.users, group.processes, strict=True)
    ]
    each.sort(key=lambda row: (-row[2].cpu_util, -row[2].resident_memory, row[2].pid))
    shown = each[: max(1, min(room, _MOST_PROCESSES))]
    lines = format_rows(_PROCESSES, [_process_cells(*row) for row in shown], width, style)
    rest = [one for *_, one in each[len(shown) :]]
    if rest:
        cpu = short_percent(sum(one.cpu_util for one in rest))
        memory = short_size(1024.0 * sum(one.resident_memory for one in rest))
        lines.append(f"and {len(rest)} more processes: {cpu} % CPU, {memory} memory")
    return lines


def _process_cells(job: str, user: str, one: SampleProcess) -> list[str]:
    return [
        str(one.pid),
        user,
        job if not job.startswith("(") else "-",
        short_percent(one.cpu_util),
        short_size(1024.0 * one.resident_memory),
        str(one.num_threads + 1),
        short_time(one.cpu_time),
        short_percent(sum(use.gpu_util for use in one.gpus)) if one.gpus else "-",
        short_size(1024.0 * one.data_read),
        short_size(1024.0 * one.data_written),
        one.cmd,
    ]


def _note_errors(sample: SampleAttributes) -> list[str]:
    count = len(sample.errors)
    if not count:
        return []
    return [f"incomplete: {sample.errors[0].detail}" + (f"; and {count - 1} more" * (count > 1))]


_METRICS = (
    TableColumn("METRIC"), TableColumn("UNIT", rank=1), TableColumn("OF", most=40),
    TableColumn("VALUE", True), TableColumn("MIN", True, 3), TableColumn("MAX", True, 3),
    TableColumn("COUNT", True, 2),
)  # fmt: skip
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
        if math.isfinite(point.value):  # line protocol also omits non-finite values
            values.append(float(point.value))
    rows = [
        [
            name, units.get(name, ""), part,
            short_number(sum(values) / len(values)) if values else "-",
            short_number(min(values)) if len(values) > 1 else "",
            short_number(max(values)) if len(values) > 1 else "",
            str(len(values)) if len(values) > 1 else "",
        ]
        for (name, part), values in sorted(found.items(), key=lambda item: item[0])
    ]  # fmt: skip
    if not rows:
        return ["no values"]
    return [place, "", *format_rows(_METRICS, rows, width, style)]


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


_SLURM_JOBS = (
    TableColumn("JOB", True), TableColumn("USER", most=12), TableColumn("PART", rank=3, most=10),
    TableColumn("STATE", most=13), TableColumn("NODES", True, 2), TableColumn("CPUS", True),
    TableColumn("GPUS", True, 4), TableColumn("MEM", True, 1), TableColumn("LIMIT", True, 5),
    TableColumn("START", rank=6), TableColumn("NODELIST", rank=7, most=20), TableColumn("NAME"),
)  # fmt: skip
_PARTITIONS = (TableColumn("PARTITION"), TableColumn("NODES"))
_STATES = (TableColumn("STATE"), TableColumn("NODES"))


def format_jobs(jobs: JobsAttributes, width: int, style: Style) -> list[str]:
    """Return one line per job. Steps are only counted."""
    own = [job for job in jobs.slurm_jobs if not job.job_step]
    steps = len(jobs.slurm_jobs) - len(own)
    head = f"{jobs.cluster}  {jobs.time[:19].replace('T', ' ')}  {len(own)} jobs, {steps} steps"
    if not own:
        return [head]
    return [
        head,
        "",
        *format_rows(_SLURM_JOBS, [_slurm_job_cells(job) for job in own], width, style),
    ]


def _slurm_job_cells(job: SlurmJob) -> list[str]:
    resources = job.allocated_resources or job.requested_resources
    memory = tres.total_memory(resources) * 1024.0
    gpus = tres.count_gpus(resources)
    limit = job.time_limit
    return [
        str(job.job_id),
        job.user_name,
        job.partition,
        job.job_state,
        str(tres.count(resources, "node") or job.requested_node_count),
        str(tres.count(resources, "cpu") or job.requested_cpus),
        str(gpus or "-"),
        short_size(memory or None),
        short_time(limit - 2) if limit > 1 else "none" if limit == 1 else "-",
        job.start_time[:19].replace("T", " ") or "-",
        ",".join(job.nodes),
        job.job_name,
    ]


def format_cluster(cluster: ClusterAttributes, width: int, style: Style) -> list[str]:
    """Return the numbers of nodes by state and by partition."""
    states = [["+".join(one.states), ",".join(one.names)] for one in cluster.nodes]
    partitions = [[one.name, ",".join(one.nodes)] for one in cluster.partitions]
    return [
        f"{cluster.cluster}  {cluster.time[:19].replace('T', ' ')}",
        "",
        *format_rows(_STATES, states, width, style),
        "",
        *format_rows(_PARTITIONS, partitions, width, style),
    ]


_CARDS = (
    TableColumn("GPU", True), TableColumn("MODEL"), TableColumn("MEM", True),
    TableColumn("LIMIT", True, 2), TableColumn("DRIVER", rank=1), TableColumn("ADDRESS"),
)  # fmt: skip
_SOFTWARE = (TableColumn("SOFTWARE"), TableColumn("VERSION"))


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
        rows = [
            [
                str(card.index), f"{card.manufacturer} {card.model}".strip(),
                short_size(1024.0 * card.memory or None),
                f"{card.power_limit}W" if card.power_limit else "-", card.driver, card.address,
            ]
            for card in info.cards
        ]  # fmt: skip
        lines += ["", *format_rows(_CARDS, rows, width, style)]
    if info.software:
        names = [[one.name or one.key, one.version] for one in info.software]
        lines += ["", *format_rows(_SOFTWARE, names, width, style)]
    return lines
