"""The screen as text lines of a snapshot, and its columns. No I/O, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.views.amounts import (
    short_number,
    short_pair,
    short_percent,
    short_size,
    short_time,
)
from ccagent.views.terminal import Style, TableColumn, clean, cut, fill, format_rows, width_of
from ccagent.views.top.snapshot import BAD, MEANINGS, letters
from ccagent.views.top.state import ViewState, as_tree, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.views.top.snapshot import TopCard, TopJob, TopMount, TopProcess, TopSnapshot

    Cells = Sequence[tuple[TableColumn, Callable[[Any], str]]]


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


KEYS = "?help q quit /filter <>sort t tree p procs g GPU m mounts space pause +-interval"
_PLAIN = Style()
_MOST_MOUNTS = 3
_FEWEST = 20
"""Minimum width of a line on any terminal."""


class ScreenLine(NamedTuple):
    """A line. part: its colour. is_selected: the cursor is on this line."""

    text: str
    part: str = ""
    is_selected: bool = False


class Screen(NamedTuple):
    """A screen. rows: of the view, visible or not. page: number of visible rows. job: selected."""

    lines: list[ScreenLine]
    rows: int
    page: int
    job: int | None = None


def draw(
    snapshot: TopSnapshot,
    state: ViewState,
    width: int,
    height: int,
    *,
    is_ascii: bool = False,
    has_keys: bool = True,
) -> Screen:
    """Return the screen for a terminal of this size.

    has_keys: False omits the keys in the last line and the empty lines before it.
    """
    width = max(_FEWEST, width)
    head = [ScreenLine(_head(snapshot, state, width, is_ascii=is_ascii), "head")]
    if state.has_help:
        return Screen([*head, *_help(width)][:height], 0, 0)
    view = _select(snapshot, state, width)
    above = [ScreenLine(cut(clean(text, is_ascii=is_ascii), width)) for text in view.above]
    lost = snapshot.mounts_note if state.view == "mounts" and snapshot.mounts else ""
    note = next((one for one in (lost, *snapshot.hidden) if one), "")
    foot = [ScreenLine(cut(_foot(state, note, is_ascii=is_ascii), width), "dim")]
    if not has_keys:
        foot = [ScreenLine(clean(note, is_ascii=is_ascii), "dim")] if note else []
    count = len(view.rows)
    page = max(1, height - len(head) - len(above) - 1 - len(foot))
    row = max(0, min(state.row, count - 1))
    first = max(0, min(row - page // 2, count - page))
    shown = range(first, min(count, first + page))
    title, *rows = _table(view, [view.rows[n] for n in shown], width, is_ascii=is_ascii)
    if state.is_tree and state.view == "processes":
        rows = _indent(rows, [view.depths[n] for n in shown], title, width)
    body = [
        ScreenLine(
            fill(text, width) if n == row else text,
            _colour(view.rows[n]) if state.view == "jobs" else "",
            n == row,
        )
        for n, text in zip(shown, rows, strict=True)
    ]
    if not rows:
        empty = clean(_empty(snapshot, state), is_ascii=is_ascii)
        body = [ScreenLine(cut(empty, width), "dim")]
    gap = (
        [ScreenLine("")] * has_keys * (height - len(head) - len(above) - 1 - len(body) - len(foot))
    )
    lines = [*head, *above, ScreenLine(fill(title, width), "title"), *body, *gap, *foot]
    job = view.rows[row].job if state.view == "jobs" and rows else None
    return Screen(lines[:height], count, page, job)


class _Selected(NamedTuple):
    """The rows of a view, lines above them, and the depths of a tree."""

    cells: Cells
    rows: Sequence[Any]
    above: list[str]
    depths: list[int]


def _select(snapshot: TopSnapshot, state: ViewState, width: int) -> _Selected:
    rows = select_rows(snapshot, state)
    if state.view == "jobs":
        return _Selected(WIDE_JOBS if width >= WIDE else NARROW_JOBS, rows, [], [])
    if state.view == "cards":
        return _Selected(CARDS, rows, [], [])
    if state.view == "mounts":
        return _Selected(MOUNTS, rows, [], [])
    above = [] if state.job is None else _describe_job(snapshot, state.job)
    tree = as_tree(rows) if state.is_tree else []
    return _Selected(
        PROCESSES, [one for one, _ in tree] or rows, above, [depth for _, depth in tree]
    )


def _table(view: _Selected, rows: Sequence[Any], width: int, *, is_ascii: bool) -> list[str]:
    columns = [column for column, _ in view.cells]
    texts = [[show(row) for _, show in view.cells] for row in rows]
    return format_rows(columns, texts, width, _PLAIN, is_ascii=is_ascii, keeps_empty=True)


def _indent(rows: list[str], depths: list[int], title: str, width: int) -> list[str]:
    """Return the rows with the last column indented by its depth in the tree."""
    place = title.rfind("CMD")
    return [
        cut(f"{row[:place]}{'  ' * min(depth, 12)}{row[place:]}", width) if place >= 0 else row
        for row, depth in zip(rows, depths, strict=True)
    ]


def _colour(job: TopJob) -> str:
    flags = {note[0] for note in job.notes}
    return "bad" if flags & BAD else "hint" if flags - {"?"} else "dim" if not job.job else ""


def _head(snapshot: TopSnapshot, state: ViewState, width: int, *, is_ascii: bool) -> str:
    """Return the first line. A long name is dropped before the mark of a pause."""
    cpus = snapshot.cpus
    busy = sum(cpus) / len(cpus) if cpus else 0.0
    known = [card for card in snapshot.cards if not card.is_failing]
    used = sum(1 for card in known if card.utilization)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    parts = [
        f"load {snapshot.load:.0f}/{len(cpus)} cpu {busy:.0f}%"
        f" mem {_memory(snapshot)}" + (f" gpu {used}/{len(snapshot.cards)} busy" if known else ""),
        "PAUSED" if state.is_paused else f"{state.interval:g}s",
        f"by {state.sort}" + ("-" if state.is_reversed else ""),
    ]
    short = snapshot.node.partition(".")[0]
    begins = (
        f"{snapshot.node} {clock} up {short_time(snapshot.uptime)}", f"{snapshot.node} {clock}",
        f"{short} {clock}", short, short[:8],
    )  # fmt: skip
    lines = [clean("  ".join([begin, *parts]), is_ascii=is_ascii) for begin in begins]
    return next((line for line in lines if width_of(line) <= width), cut(lines[-1], width))


def _memory(snapshot: TopSnapshot) -> str:
    used, total = short_size(snapshot.memory_used), short_size(snapshot.memory_total)
    return f"{used[:-1] if used[-1:] == total[-1:] and len(used) > 1 else used}/{total}"


def _foot(state: ViewState, note: str, *, is_ascii: bool) -> str:
    if state.is_typing:
        return f"/{clean(state.filter, is_ascii=is_ascii)}_  Enter: keep, Esc: none"
    if state.filter:
        return f"filter {clean(state.filter, is_ascii=is_ascii)}  Esc: none  {KEYS}"
    if note:
        return clean(f"{note}  ?help q quit", is_ascii=is_ascii)
    return KEYS


def _describe_job(snapshot: TopSnapshot, number: int) -> list[str]:
    """Return the lines above the processes of a job: the job, its cards, the hwthreads."""
    job = next((one for one in snapshot.jobs if one.job == number), None)
    if job is None:
        return [f"job {number} has ended, or is not on this node"]
    name = f"job {number} {job.name}" if number else "(system)"
    notes = ", ".join(job.notes)
    memory = f"{short_size(job.memory)} of {short_size(job.memory_limit)}"
    memory += f", peak {short_size(job.peak)}, page cache {short_size(job.cache)}"
    lines = [
        f"{name}  {job.user} {job.partition}  {job.processes} processes, {job.threads} threads  "
        f"{notes}".rstrip(),
        f"CPU {history_signs(job.history)}  memory {memory}",
    ]
    own = [card for card in snapshot.cards if card.index in job.gpus]
    lines += [
        f"GPU {card.index} {'?' if card.utilization is None else f'{card.utilization:.0f}%'}"
        f" {short_size(card.memory)} {card.power}W"
        for card in own
    ]
    lines += _describe_mounts(snapshot, number)
    return [*lines, f"hwthreads {history_signs(snapshot.cpus)}"]


def _describe_mounts(snapshot: TopSnapshot, number: int) -> list[str]:
    """Return one line per busiest mount of a job. Idle mounts are omitted."""
    found = select_rows(snapshot, ViewState(view="mounts", job=number))
    return [
        f"{one.point} {one.type}: {short_size(one.read)}B/s read, {short_size(one.written)}B/s"
        f" written; {short_rate(one.reads)} reads, {short_rate(one.writes)} writes,"
        f" {short_rate(one.metadata)} metadata a second"
        for one in found[:_MOST_MOUNTS]
        if one.operations
    ]


def _empty(snapshot: TopSnapshot, state: ViewState) -> str:
    if state.filter:
        return "nothing matches the filter; Esc shows all"
    if state.view == "cards":
        return "no GPU on this node"
    if state.view == "mounts":
        return snapshot.mounts_note or "no job uses a mount; the first rates need two readings"
    if state.view == "jobs" and not snapshot.jobs:
        return "no job on this node"
    return "no process"


def _help(width: int) -> list[ScreenLine]:
    keys = [
        ("Enter", "open a job: its processes, cards and the hwthreads; Esc back"),
        ("p g m", "all processes; GPUs; file systems (mounts) of jobs; again: jobs"),
        ("/ F4", "show only rows with a text; Esc: all"),
        ("< > F6", "sort by previous, next column; P CPU, M memory, T time, N number"),
        ("I", "the smallest first"),
        ("t F5", "processes as a tree"),
        ("+ -", "longer, shorter interval"),
        ("space", "pause"),
        ("arrows", "and j k, PgUp PgDn, Home End: move"),
        ("q F10", "quit"),
    ]
    lines = ["", *(f"  {key:8}{text}" for key, text in keys)]
    lines += ["", "  Notes of jobs:", *(f"  {flag:8}{text}" for flag, text in MEANINGS.items())]
    lines += ["", "  Any key: back. Nothing here ends a process."]
    return [ScreenLine(cut(line, width)) for line in lines]
