"""Columns of the views, by width of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.table.layout import TableColumn
from ccagent.views.top.notes import letters
from ccagent.views.units import (
    short_number,
    short_pair,
    short_percent,
    short_size,
    short_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.views.top.snapshot import TopCard, TopJob, TopMount, TopProcess

WIDE = 140
"""Minimum width for all columns of jobs."""

_STEPS = "_.:-=+*#%@"
"""Signs of CPU use, from 0 to 100 %."""


def history_signs(history: Sequence[float]) -> str:
    """Return one sign per reading, the newest at the right."""
    return "".join(_STEPS[min(9, max(0, int(value / 10)))] for value in history)


def _dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _pressures(job: TopJob) -> str:
    if all(one is None for one in job.pressure):
        return "-"
    return "/".join(short_percent(one) for one in job.pressure)


def _limits(job: TopJob) -> str:
    if job.time_limit is None:
        return short_time(job.elapsed)
    return f"{short_time(job.elapsed)}/{short_time(job.time_limit)}"


def _share(job: TopJob) -> float | None:
    return 100 * job.memory / job.memory_limit if job.memory_limit else None


def _name(job: TopJob) -> str:
    return str(job.job) if job.job else "(system)"


def short_rate(rate: float) -> str:
    """Return operations per second as an integer, or `<1`."""
    return "<1" if 0 < rate < 1 else short_number(round(rate))


def _state(card: TopCard) -> str:
    if card.is_failing:
        return "failing"
    return f"idle {short_time(card.idle)}" if card.idle else ""


JobCell = tuple[TableColumn, "Callable[[TopJob], str]"]

NARROW_JOBS: tuple[JobCell, ...] = (
    (TableColumn("JOB", least=8), _name),
    (TableColumn("USER", rank=3, most=9, least=6), lambda job: job.user or "-"),
    (TableColumn("CPUS", True, 5), lambda job: _dash(job.cpus)),
    (TableColumn("CPU%", True, least=4), lambda job: f"{short_percent(job.cpu)}%"),
    (TableColumn("MEM", rank=4, most=11, least=9),
     lambda job: short_pair(job.memory, job.memory_limit)),
    (TableColumn("MEM%", True, 1, least=4),
     lambda job: "-" if _share(job) is None else f"{short_percent(_share(job))}%"),
    (TableColumn("GPU", True, 6), lambda job: str(len(job.gpus)) if job.job else "-"),
    (TableColumn("GPU%", True, 2),
     lambda job: "-" if job.gpu is None else f"{short_percent(job.gpu)}%"),
    (TableColumn("READ", True, 8, least=5), lambda job: short_size(job.read)),
    (TableColumn("WRITE", True, 9, least=5), lambda job: short_size(job.written)),
    (TableColumn("TIME", True, 7, least=7), lambda job: short_time(job.elapsed)),
    (TableColumn("NOTE"), lambda job: letters(job.notes)),
)  # fmt: skip
"""Columns of jobs at a width of 80. Narrower terminals drop WRITE first, MEM% last."""

WIDE_JOBS: tuple[JobCell, ...] = (
    (TableColumn("JOB", least=8), _name),
    (TableColumn("NAME", most=14, least=8), lambda job: job.name),
    (TableColumn("USER", most=9, least=6), lambda job: job.user or "-"),
    (TableColumn("PART", most=8, rank=1), lambda job: job.partition),
    (TableColumn("CPUS", True), lambda job: _dash(job.cpus)),
    (TableColumn("CPU%", True, least=4), lambda job: f"{short_percent(job.cpu)}%"),
    (TableColumn("HISTORY", most=20, least=20), lambda job: history_signs(job.history)),
    (TableColumn("PROC", True, 9), lambda job: str(job.processes)),
    (TableColumn("THR", True, 8), lambda job: str(job.threads)),
    (TableColumn("MEM/LIMIT", most=11, least=9),
     lambda job: short_pair(job.memory, job.memory_limit)),
    (TableColumn("PEAK", True, 5), lambda job: short_size(job.peak)),
    (TableColumn("CACHE", True, 6), lambda job: short_size(job.cache)),
    (TableColumn("PSI c/m/i", rank=4), _pressures),
    (TableColumn("GPU", True), lambda job: str(len(job.gpus)) if job.job else "-"),
    (TableColumn("GPU%", True),
     lambda job: "-" if job.gpu is None else f"{short_percent(job.gpu)}%"),
    (TableColumn("GMEM", True, 3),
     lambda job: "-" if job.gpu_memory is None else short_size(job.gpu_memory)),
    (TableColumn("W", True, 7), lambda job: _dash(job.power)),
    (TableColumn("READ", True, 2, least=5), lambda job: short_size(job.read)),
    (TableColumn("WRITE", True, 2, least=5), lambda job: short_size(job.written)),
    (TableColumn("TIME/LIMIT", True), _limits),
    (TableColumn("NOTE"), lambda job: ", ".join(job.notes)),
)  # fmt: skip
"""Columns of jobs at a width of 160."""

ProcessCell = tuple[TableColumn, "Callable[[TopProcess], str]"]

PROCESSES: tuple[ProcessCell, ...] = (
    (TableColumn("PID", True, least=7), lambda one: str(one.pid)),
    (TableColumn("USER", rank=2, most=9, least=6), lambda one: one.user),
    (TableColumn("JOB", True, 8), lambda one: str(one.job) if one.job else "-"),
    (TableColumn("CPU%", True, least=4), lambda one: short_percent(one.cpu)),
    (TableColumn("RES", True, 1, least=4), lambda one: short_size(one.memory)),
    (TableColumn("THR", True, 7, least=4), lambda one: str(one.threads)),
    (TableColumn("TIME", True, 6, least=7), lambda one: short_time(one.cpu_time)),
    (TableColumn("GPU", rank=3), lambda one: ",".join(map(str, sorted(set(one.gpus)))) or "-"),
    (TableColumn("GPU-MEM", True, 3),
     lambda one: "-" if one.gpu_memory is None else short_size(one.gpu_memory)),
    (TableColumn("READ", True, 4, least=5), lambda one: short_size(one.read)),
    (TableColumn("WRITE", True, 5, least=5), lambda one: short_size(one.written)),
    (TableColumn("CMD"), lambda one: one.command),
)  # fmt: skip

CardCell = tuple[TableColumn, "Callable[[TopCard], str]"]

CARDS: tuple[CardCell, ...] = (
    (TableColumn("GPU", True), lambda one: str(one.index)),
    (TableColumn("USE%", True),
     lambda one: "?" if one.utilization is None else short_percent(one.utilization)),
    (TableColumn("MEM", True), lambda one: short_size(one.memory)),
    (TableColumn("MEM%", True), lambda one: short_percent(one.memory_percent)),
    (TableColumn("W", True, 2), lambda one: str(one.power or "-")),
    (TableColumn("LIMIT", True, 3), lambda one: str(one.power_limit or "-")),
    (TableColumn("C", True, 4), lambda one: str(one.temperature or "-")),
    (TableColumn("JOB", True), lambda one: str(one.job) if one.job else "-"),
    (TableColumn("USER", most=12), lambda one: one.user or "-"),
    (TableColumn("NOTE"),
     _state),
)  # fmt: skip

MountCell = tuple[TableColumn, "Callable[[TopMount], str]"]

MOUNTS: tuple[MountCell, ...] = (
    (TableColumn("JOB", least=8), lambda one: str(one.job) if one.job else "(system)"),
    (TableColumn("MOUNT", most=40, least=8), lambda one: one.point),
    (TableColumn("TYPE", rank=4, most=8, least=5), lambda one: one.type),
    (TableColumn("READ", True, least=5), lambda one: short_size(one.read)),
    (TableColumn("WRITE", True, least=5), lambda one: short_size(one.written)),
    (TableColumn("READS", True, 3, least=6), lambda one: short_rate(one.reads)),
    (TableColumn("WRITES", True, 2, least=6), lambda one: short_rate(one.writes)),
    (TableColumn("METADATA", True, 1), lambda one: short_rate(one.metadata)),
    (TableColumn("SOURCE", rank=5), lambda one: one.source),
)  # fmt: skip
"""Columns of mounts. Rates per second: bytes, calls, operations such as open and stat."""
