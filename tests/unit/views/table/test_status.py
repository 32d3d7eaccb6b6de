"""The status of the daemon, and queues, as tables."""

from __future__ import annotations

import pytest
from msgspec import structs

from ccagent.counters import AgentCounters, SinkCounters
from ccagent.queue.commands import BacklogRow
from ccagent.service.status_socket import Status
from ccagent.views.table.status import format_queues, format_status
from ccagent.views.terminal import Style

STATUS = Status(
    version="1.0.0", cluster="fox", node="n1", pid=77, seconds=3725.0, cpu_seconds=1.5,
    resident_memory=20_480,
    agents={"sample": AgentCounters(samples=120, seconds=1.25, cpu_seconds=0.5, restarts=1)},
    sinks={"backend": SinkCounters(queued=5, backlog=2, last_error="connection \x1b[2Jrefused")},
)  # fmt: skip


def test_a_status_has_units_and_errors_below_their_sinks() -> None:
    assert format_status(STATUS, 100, Style()) == [
        "ccagent 1.0.0, process 77, node n1 of fox",
        "running 1:02:05, 1.50 s CPU, 20M memory",
        "",
        "agent             samples  errors  skipped   seconds     CPU s",
        "sample                120       0        0     1.250     0.500",
        "  restarted 1 times after an error: see the log",
        "",
        "sink               queued  backlog     sent acknowledged  retried rejected  dropped",
        "backend                 5        2        0            0        0        0        0",
        "  connection \N{REPLACEMENT CHARACTER}[2Jrefused",
    ]


def test_restarts_of_the_daemon_are_shown() -> None:
    restarted = structs.replace(STATUS, restarts=2)
    assert format_status(restarted, 100, Style())[1].endswith(
        "20M memory, restarted 2 times after an error: see the log"
    )


def test_the_last_error_of_an_agent_is_shown_below_it() -> None:
    agents = {"jobs": AgentCounters(errors=4, last_error="sacct: \x1b[2Jno answer")}
    lines = format_status(structs.replace(STATUS, agents=agents), 100, Style())
    assert lines[4:6] == [
        "jobs                    0       4        0     0.000     0.000",
        "  sacct: \N{REPLACEMENT CHARACTER}[2Jno answer",
    ]


def test_damaged_messages_are_shown_below_their_sink() -> None:
    sink = SinkCounters(queued=5, damaged=2)
    lines = format_status(structs.replace(STATUS, sinks={"backend": sink}), 100, Style())
    assert lines[-1] == "  2 messages in the queue were damaged"


def test_queues_have_their_dead_letters_below_them() -> None:
    rows = [
        BacklogRow("backend", 3, 1_500_000, 61.0, 1, 0, ("sample of n1, 80 bytes: 403",)),
        BacklogRow("other", error="file is not a database"),
    ]
    assert format_queues(rows, 100, Style()) == [
        "sink              messages     bytes    oldest dead letters  dropped",
        "backend                  3      1.4M      1:01            1        0",
        "  sample of n1, 80 bytes: 403",
        "other",
        "  file is not a database",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_lines_fit_the_width(width: int) -> None:
    lines = format_status(STATUS, width, Style())
    assert all(len(line) <= width for line in lines)
