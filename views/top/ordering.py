"""Filters and sort orders of the views' rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.views.top.snapshot import TopCard, TopJob, TopMount, TopProcess, TopSnapshot
    from ccagent.views.top.state import ViewState

_JOBS: dict[str, Callable[[TopJob], float]] = {
    "CPU": lambda job: job.cores,
    "MEM": lambda job: job.memory,
    "GPU": lambda job: job.gpu if job.gpu is not None else -1.0,
    "READ": lambda job: job.read or 0.0,
    "WRITE": lambda job: job.written or 0.0,
    "TIME": lambda job: job.elapsed or 0.0,
    "JOB": lambda job: -job.job,
}
_PROCESSES: dict[str, Callable[[TopProcess], float]] = {
    "CPU": lambda one: one.cpu,
    "MEM": lambda one: one.memory,
    "GPU": lambda one: one.gpu if one.gpu is not None else -1.0,
    "READ": lambda one: one.read or 0.0,
    "WRITE": lambda one: one.written or 0.0,
    "TIME": lambda one: one.cpu_time,
    "PID": lambda one: -one.pid,
}
_CARDS: dict[str, Callable[[TopCard], float]] = {
    "GPU": lambda card: -card.index,
    "MEM": lambda card: card.memory,
    "POWER": lambda card: card.power,
    "JOB": lambda card: -card.job,
}
_MOUNTS: dict[str, Callable[[TopMount], float]] = {
    "I/O": lambda one: one.transferred,
    "READ": lambda one: one.read,
    "WRITE": lambda one: one.written,
    "OPS": lambda one: one.operations,
    "JOB": lambda one: -one.job,
}


def select_jobs(snapshot: TopSnapshot, state: ViewState) -> list[TopJob]:
    """Return the filtered and sorted jobs; the system is last."""
    wanted = state.filter.lower()
    found = [
        job
        for job in snapshot.jobs
        if wanted in f"{job.job or '(system)'} {job.user} {job.name} {job.partition}".lower()
    ]
    key = _JOBS[state.sort]
    found.sort(key=lambda job: (key(job), -job.job), reverse=not state.is_reversed)
    found.sort(key=lambda job: not job.job)
    return found


def select_processes(snapshot: TopSnapshot, state: ViewState) -> list[tuple[TopProcess, int]]:
    """Return the processes of the opened job, else all processes, with their depth in the tree."""
    wanted = state.filter.lower()
    found = [
        one
        for one in snapshot.processes
        if (state.job is None or one.job == state.job)
        and wanted in f"{one.pid} {one.user} {one.command}".lower()
    ]
    key = _PROCESSES[state.sort]
    found.sort(key=lambda one: (key(one), -one.pid), reverse=not state.is_reversed)
    if not state.is_tree:
        return [(one, 0) for one in found]
    return _as_tree(found)


def _as_tree(found: list[TopProcess]) -> list[tuple[TopProcess, int]]:
    """Return children after their parents, each level in the order of the input."""
    known = {one.pid for one in found}
    children: dict[int, list[TopProcess]] = {}
    for one in found:
        children.setdefault(one.ppid if one.ppid in known else -1, []).append(one)
    rows: list[tuple[TopProcess, int]] = []
    left = [(one, 0) for one in reversed(children.pop(-1, []))]
    while left:
        one, depth = left.pop()
        rows.append((one, depth))
        left += [(child, depth + 1) for child in reversed(children.pop(one.pid, []))]
    # Reused process ids may make a process its own ancestor.
    return rows + [(one, 0) for each in children.values() for one in each]


def select_cards(snapshot: TopSnapshot, state: ViewState) -> list[TopCard]:
    """Return the filtered and sorted cards."""
    wanted = state.filter.lower()
    found = [one for one in snapshot.cards if wanted in f"{one.index} {one.job} {one.user}".lower()]
    key = _CARDS[state.sort]
    found.sort(key=lambda card: (key(card), -card.index), reverse=not state.is_reversed)
    return found


def select_mounts(snapshot: TopSnapshot, state: ViewState) -> list[TopMount]:
    """Return the mounts of the opened job, else of all jobs. Ties are sorted by calls."""
    wanted = state.filter.lower()
    found = [
        one
        for one in snapshot.mounts
        if (state.job is None or one.job == state.job)
        and wanted in f"{one.job or '(system)'} {one.point} {one.type} {one.source}".lower()
    ]
    key = _MOUNTS[state.sort]
    found.sort(
        key=lambda one: (key(one), one.operations, -one.job, one.point),
        reverse=not state.is_reversed,
    )
    return found
