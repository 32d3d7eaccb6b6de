"""The screen as text lines of a snapshot, and its columns. No I/O, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.views.amounts import short_number, short_pair, short_percent, short_size, short_time
from ccagent.views.terminal import Style, TableColumn, clean, cut, fill, format_rows, width_of
from ccagent.views.top.snapshot import BAD, MEANINGS, letters
from ccagent.views.top.state import ViewState, as_tree, select_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.views.top.snapshot import TopCard, TopJob, TopMount, TopProcess, TopSnapshot


WIDE = 140
"""Minimum width for all columns of jobs."""

_STEPS = "_.:-=+*#%@"
"""Signs of CPU use, from 0 to 100 %."""


def history_signs(history: Sequence[float]) -> str:
    """Return one sign per reading, the newest at the right."""
    return "".join(_STEPS[min(9, max(0, int(value / 10)))] for value in history)


def _dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{short_percent(value)}%"


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


def _show_use(card: TopCard) -> str:
    return "?" if card.utilization is None else short_percent(card.utilization)


def _state(card: TopCard) -> str:
    if card.is_failing:
        return "failing"
    return f"idle {short_time(card.idle)}" if card.idle else ""


NARROW_JOBS: tuple[TableColumn[TopJob], ...] = (
    TableColumn("JOB", _name, least=8),
    TableColumn("USER", lambda job: job.user or "-", rank=3, most=9, least=6),
    TableColumn("CPUS", lambda job: _dash(job.cpus), True, 5),
    TableColumn("CPU%", lambda job: f"{short_percent(job.cpu)}%", True, least=4),
    TableColumn("MEM", lambda job: short_pair(job.memory, job.memory_limit),
                rank=4, most=11, least=9),
    TableColumn("MEM%", lambda job: _percent(_share(job)), True, 1, least=4),
    TableColumn("GPU", lambda job: str(len(job.gpus)) if job.job else "-", True, 6),
    TableColumn("GPU%", lambda job: _percent(job.gpu), True, 2),
    TableColumn("READ", lambda job: short_size(job.read), True, 8, least=5),
    TableColumn("WRITE", lambda job: short_size(job.written), True, 9, least=5),
    TableColumn("TIME", lambda job: short_time(job.elapsed), True, 7, least=7),
    TableColumn("NOTE", lambda job: letters(job.notes)),
)  # fmt: skip
"""Columns of jobs at a width of 80. Narrower terminals drop WRITE first, MEM% last."""

WIDE_JOBS: tuple[TableColumn[TopJob], ...] = (
    TableColumn("JOB", _name, least=8),
    TableColumn("NAME", lambda job: job.name, most=14, least=8),
    TableColumn("USER", lambda job: job.user or "-", most=9, least=6),
    TableColumn("PART", lambda job: job.partition, most=8, rank=1),
    TableColumn("CPUS", lambda job: _dash(job.cpus), True),
    TableColumn("CPU%", lambda job: f"{short_percent(job.cpu)}%", True, least=4),
    TableColumn("HISTORY", lambda job: history_signs(job.history), most=20, least=20),
    TableColumn("PROC", lambda job: str(job.processes), True, 9),
    TableColumn("THR", lambda job: str(job.threads), True, 8),
    TableColumn("MEM/LIMIT", lambda job: short_pair(job.memory, job.memory_limit),
                most=11, least=9),
    TableColumn("PEAK", lambda job: short_size(job.peak), True, 5),
    TableColumn("CACHE", lambda job: short_size(job.cache), True, 6),
    TableColumn("PSI c/m/i", _pressures, rank=4),
    TableColumn("GPU", lambda job: str(len(job.gpus)) if job.job else "-", True),
    TableColumn("GPU%", lambda job: _percent(job.gpu), True),
    TableColumn("GMEM", lambda job: short_size(job.gpu_memory), True, 3),
    TableColumn("W", lambda job: _dash(job.power), True, 7),
    TableColumn("READ", lambda job: short_size(job.read), True, 2, least=5),
    TableColumn("WRITE", lambda job: short_size(job.written), True, 2, least=5),
    TableColumn("TIME/LIMIT", _limits, True),
    TableColumn("NOTE", lambda job: ", ".join(job.notes)),
)  # fmt: skip
"""Columns of jobs at a width of 160."""

PROCESSES: tuple[TableColumn[TopProcess], ...] = (
    TableColumn("PID", lambda one: "-" if one.is_ended else str(one.pid), True, least=7),
    TableColumn("USER", lambda one: one.user, rank=2, most=9, least=6),
    TableColumn("JOB", lambda one: str(one.job) if one.job else "-", True, 8),
    TableColumn("CPU%", lambda one: short_percent(one.cpu), True, least=4),
    TableColumn("RES", lambda one: short_size(one.memory), True, 1, least=4),
    TableColumn("THR", lambda one: str(one.threads), True, 7, least=4),
    TableColumn("TIME", lambda one: short_time(one.cpu_time), True, 6, least=7),
    TableColumn("GPU", lambda one: ",".join(map(str, sorted(set(one.gpus)))) or "-", rank=3),
    TableColumn("GPU-MEM", lambda one: short_size(one.gpu_memory), True, 3),
    TableColumn("READ", lambda one: short_size(one.read), True, 4, least=5),
    TableColumn("WRITE", lambda one: short_size(one.written), True, 5, least=5),
    TableColumn("CMD", lambda one: one.command),
)  # fmt: skip

CARDS: tuple[TableColumn[TopCard], ...] = (
    TableColumn("GPU", lambda one: str(one.index), True),
    TableColumn("USE%", _show_use, True),
    TableColumn("MEM", lambda one: short_size(one.memory), True),
    TableColumn("MEM%", lambda one: short_percent(one.memory_percent), True),
    TableColumn("W", lambda one: str(one.power or "-"), True, 2),
    TableColumn("LIMIT", lambda one: str(one.power_limit or "-"), True, 3),
    TableColumn("C", lambda one: str(one.temperature or "-"), True, 4),
    TableColumn("JOB", lambda one: str(one.job) if one.job else "-", True),
    TableColumn("USER", lambda one: one.user or "-", most=12),
    TableColumn("NOTE", _state),
)  # fmt: skip

MOUNTS: tuple[TableColumn[TopMount], ...] = (
    TableColumn("JOB", lambda one: str(one.job) if one.job else "(system)", least=8),
    TableColumn("MOUNT", lambda one: one.point, most=40, least=8),
    TableColumn("TYPE", lambda one: one.type, rank=4, most=8, least=5),
    TableColumn("READ", lambda one: short_size(one.read), True, least=5),
    TableColumn("WRITE", lambda one: short_size(one.written), True, least=5),
    TableColumn("READS", lambda one: short_rate(one.reads), True, 3, least=6),
    TableColumn("WRITES", lambda one: short_rate(one.writes), True, 2, least=6),
    TableColumn("METADATA", lambda one: short_rate(one.metadata), True, 1),
    TableColumn("SOURCE", lambda one: one.source, rank=5),
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
    meters = _meters(snapshot.cpus, width, height // 3) if state.has_meters else []
    above = [
        ScreenLine(cut(clean(text, is_ascii=is_ascii), width)) for text in (*meters, *view.above)
    ]
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
    title, *rows = format_rows(
        view.columns,
        [view.rows[n] for n in shown],
        width,
        _PLAIN,
        is_ascii=is_ascii,
        keeps_empty=True,
    )
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

    columns: Sequence[TableColumn[Any]]
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
        f" mem {short_pair(snapshot.memory_used, snapshot.memory_total)}"
        + (f" gpu {used}/{len(snapshot.cards)} busy" if known else ""),
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


_METER = 20
"""Minimum width of the meter of a hwthread."""


def _meters(cpus: Sequence[float], width: int, most: int) -> list[str]:
    """Return a meter per hwthread; a sign per hwthread if the meters need more than `most` lines.

    Numbers go down the columns.
    """
    across = max(1, width // _METER)
    rows = -(-len(cpus) // across)
    if rows > most:
        size = max(1, width - 6)
        return [
            f"{first:4} {history_signs(cpus[first : first + size])}"
            for first in range(0, len(cpus), size)
        ][: max(1, most)]
    room = width // across - 11
    texts = [
        f"{number:4}[{'|' * round(room * min(use, 100) / 100):{room}}{use:3.0f}%]"
        for number, use in enumerate(cpus)
    ]
    return [" ".join(texts[row::rows]) for row in range(rows)]


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
        ("t F5, I", "processes as a tree; the smallest first"),
        ("c", "a meter for each hwthread"),
        ("e", "hide <ended>: what ended since the last reading, summed by command"),
        ("+ - space", "longer, shorter interval; pause"),
        ("arrows", "and j k, PgUp PgDn, Home End: move"),
        ("q F10", "quit"),
    ]
    lines = ["", *(f"  {key:10}{text}" for key, text in keys)]
    lines += ["", "  Notes of jobs:", *(f"  {flag:8}{text}" for flag, text in MEANINGS.items())]
    lines += ["", "  Any key: back. Nothing here ends a process."]
    return [ScreenLine(cut(line, width)) for line in lines]
