"""Tables of the daemon's status, and of the queues of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ccagent.views.amounts import short_size, short_time
from ccagent.views.terminal import Style, TableColumn, clean, cut, fold, format_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.counters import AgentCounters, SinkCounters
    from ccagent.queue.commands import BacklogRow
    from ccagent.service.status_socket import Status

R = TypeVar("R")

_AGENTS: tuple[TableColumn[tuple[str, AgentCounters]], ...] = (
    TableColumn("agent", lambda row: row[0], least=16),
    TableColumn("samples", lambda row: str(row[1].samples), True, least=8),
    TableColumn("errors", lambda row: str(row[1].errors), True, least=7),
    TableColumn("skipped", lambda row: str(row[1].skipped), True, least=8),
    TableColumn("seconds", lambda row: f"{row[1].seconds:.3f}", True, 1, least=9),
    TableColumn("CPU s", lambda row: f"{row[1].cpu_seconds:.3f}", True, 2, least=9),
)
_SINKS: tuple[TableColumn[tuple[str, SinkCounters]], ...] = (
    TableColumn("sink", lambda row: row[0], least=16),
    TableColumn("queued", lambda row: str(row[1].queued), True, 2, least=8),
    TableColumn("backlog", lambda row: str(row[1].backlog), True, least=8),
    TableColumn("sent", lambda row: str(row[1].sent), True, 3, least=8),
    TableColumn("acknowledged", lambda row: str(row[1].acknowledged), True, least=12),
    TableColumn("retried", lambda row: str(row[1].retried), True, 4, least=8),
    TableColumn("rejected", lambda row: str(row[1].rejected), True, least=8),
    TableColumn("dropped", lambda row: str(row[1].dropped), True, least=8),
)


def _if_read(show: Callable[[BacklogRow], str]) -> Callable[[BacklogRow], str]:
    """Return a function that shows nothing of a queue that can't be read."""
    return lambda row: "" if row.error else show(row)


_QUEUES: tuple[TableColumn[BacklogRow], ...] = (
    TableColumn("sink", lambda row: row.sink, least=16),
    TableColumn("messages", _if_read(lambda row: str(row.messages)), True, least=9),
    TableColumn("bytes", _if_read(lambda row: short_size(row.size)), True, 1, least=9),
    TableColumn("oldest", _if_read(lambda row: short_time(row.age)), True, least=9),
    TableColumn("dead letters", _if_read(lambda row: str(row.dead_letters)), True, least=12),
    TableColumn("dropped", _if_read(lambda row: str(row.dropped)), True, 2, least=8),
)


def format_status(status: Status, width: int, style: Style) -> list[str]:
    """Return the lines of a daemon's status."""
    agents, sinks = status.agents.items(), status.sinks.items()
    agent_notes = [
        [*_restarts(each.restarts), *([each.last_error] if each.last_error else [])]
        for _, each in agents
    ]
    return [
        *fold(clean(
            f"ccagent {status.version}, process {status.pid}, node {status.node} of"
            f" {status.cluster}"
        ), width),
        *fold(
            f"running {short_time(status.seconds)}, {status.cpu_seconds:.2f} s CPU,"
            f" {short_size(1024.0 * status.resident_memory)} memory"
            + "".join(f", {one}" for one in _restarts(status.restarts)), width,
        ),
        "",
        *_with_notes(_AGENTS, agents, agent_notes, width, style),
        "",
        *_with_notes(_SINKS, sinks, [_sink_notes(each) for _, each in sinks], width, style),
    ]  # fmt: skip


def format_queues(queues: Iterable[BacklogRow], width: int, style: Style) -> list[str]:
    """Return one line per queue, followed by its dead letters."""
    rows = list(queues)
    notes = [[each.error] if each.error else list(each.details) for each in rows]
    return _with_notes(_QUEUES, rows, notes, width, style)


def _sink_notes(sink: SinkCounters) -> list[str]:
    notes: list[str] = []
    if sink.damaged:
        notes.append(f"{sink.damaged} messages in the queue were damaged")
    if sink.restarts:
        notes.append(f"continued after {sink.restarts} unforeseen errors; see the log")
    return notes + [error for error in (sink.queue_error, sink.last_error) if error]


def _restarts(times: int) -> list[str]:
    return [f"restarted {times} times after an error: see the log"] if times else []


def _with_notes(
    columns: Sequence[TableColumn[R]], rows: Iterable[R], notes: list[list[str]], width: int,
    style: Style,
) -> list[str]:  # fmt: skip
    """Return the lines of a table, each followed by its notes."""
    head, *lines = format_rows(columns, rows, width, style, keeps_empty=True)
    found = [head]
    for line, each in zip(lines, notes, strict=True):
        found.append(cut(line, width))
        for note in each:
            found += fold(clean(note), width, "  ")
    return found
