"""A table of a node's sample: jobs, the busiest processes, a line for the rest."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ccagent.machine.user_names import local_users
from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.units import short_pair, short_percent, short_size, short_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.envelopes import SampleAttributes, SampleJob, SampleProcess
    from ccagent.views.terminal import Style

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
