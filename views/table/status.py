"""Tables of the daemon's status, and of the queues of sinks."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.terminal import clean, cut
from ccagent.views.units import short_size, short_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.counters import SinkCounters
    from ccagent.service.status import Status
    from ccagent.views.terminal import Style

_AGENTS = (
    TableColumn("agent", least=16), TableColumn("samples", True, least=8),
    TableColumn("errors", True, least=7), TableColumn("skipped", True, least=8),
    TableColumn("seconds", True, 1, least=9), TableColumn("CPU s", True, 2, least=9),
)  # fmt: skip
_SINKS = (
    TableColumn("sink", least=16), TableColumn("queued", True, 2, least=8),
    TableColumn("backlog", True, least=8), TableColumn("sent", True, 3, least=8),
    TableColumn("acknowledged", True, least=12), TableColumn("retried", True, 4, least=8),
    TableColumn("rejected", True, least=8), TableColumn("dropped", True, least=8),
)  # fmt: skip
_QUEUES = (
    TableColumn("sink", least=16), TableColumn("messages", True, least=9),
    TableColumn("bytes", True, 1, least=9), TableColumn("oldest", True, least=9),
    TableColumn("dead letters", True, least=12), TableColumn("dropped", True, 2, least=8),
)  # fmt: skip


class BacklogRow(NamedTuple):
    """The queue of a sink. age: of its oldest message, in seconds. details: lines of dead letters.

    error: reason if the queue can't be read; the other fields are then 0.
    """

    sink: str
    messages: int = 0
    size: int = 0
    age: float = 0.0
    dead_letters: int = 0
    dropped: int = 0
    details: tuple[str, ...] = ()
    error: str = ""


def format_status(status: Status, width: int, style: Style) -> list[str]:
    """Return the lines of a daemon's status."""
    agents = [
        [
            name, str(each.samples), str(each.errors), str(each.skipped),
            f"{each.seconds:.3f}", f"{each.cpu_seconds:.3f}",
        ]
        for name, each in status.agents.items()
    ]  # fmt: skip
    sinks = [
        [
            name, str(each.queued), str(each.backlog), str(each.sent), str(each.acknowledged),
            str(each.retried), str(each.rejected), str(each.dropped),
        ]
        for name, each in status.sinks.items()
    ]  # fmt: skip
    agent_notes = [
        [*_restarts(each.restarts), *([each.last_error] if each.last_error else [])]
        for each in status.agents.values()
    ]
    return [
        *_fold(
            f"ccagent {status.version}, process {status.pid}, node {status.node} of"
            f" {status.cluster}", width,
        ),
        *_fold(
            f"running {short_time(status.seconds)}, {status.cpu_seconds:.2f} s CPU,"
            f" {short_size(1024.0 * status.resident_memory)} memory"
            + "".join(f", {one}" for one in _restarts(status.restarts)), width,
        ),
        "",
        *_with_notes(format_rows(_AGENTS, agents, width, style, keeps_empty=True), agent_notes,
                     width),
        "",
        *_with_notes(format_rows(_SINKS, sinks, width, style, keeps_empty=True),
                     [_sink_notes(each) for each in status.sinks.values()], width),
    ]  # fmt: skip


def format_queues(queues: Iterable[BacklogRow], width: int, style: Style) -> list[str]:
    """Return one line per queue, followed by its dead letters."""
    rows, notes = list[list[str]](), list[list[str]]()
    for each in queues:
        if each.error:
            rows.append([each.sink, "", "", "", "", ""])
            notes.append([each.error])
            continue
        rows.append([
            each.sink, str(each.messages), short_size(each.size), short_time(each.age),
            str(each.dead_letters), str(each.dropped),
        ])  # fmt: skip
        notes.append(list(each.details))
    return _with_notes(format_rows(_QUEUES, rows, width, style, keeps_empty=True), notes, width)


def _sink_notes(sink: SinkCounters) -> list[str]:
    notes: list[str] = []
    if sink.damaged:
        notes.append(f"{sink.damaged} messages in the queue were damaged")
    if sink.restarts:
        notes.append(f"continued after {sink.restarts} unforeseen errors; see the log")
    return notes + [error for error in (sink.queue_error, sink.last_error) if error]


def _restarts(times: int) -> list[str]:
    return [f"restarted {times} times after an error: see the log"] if times else []


def _with_notes(lines: list[str], notes: list[list[str]], width: int) -> list[str]:
    """Return the lines of a table, each followed by its notes."""
    found = [lines[0]]
    for line, each in zip(lines[1:], notes, strict=True):
        found.append(cut(line, width))
        for note in each:
            found += _fold(note, width, "  ")
    return found


def _fold(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        clean(text), max(20, width), initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
