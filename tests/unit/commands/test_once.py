"""One-shot delivery: a sink that fails, in whatever way, costs the other sinks nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ccagent.commands.once import run_once
from ccagent.config import registry
from ccagent.config.configuration import check
from ccagent.queue.queue import Queue
from tests.support.scripted import ScriptedTransport, orders


class LocalTransport(ScriptedTransport):
    """Takes messages without a queue."""

    is_network = False


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.AGENTS, "scripted", "tests.support.scripted:ScriptedAgent")
    monkeypatch.setitem(registry.TRANSPORTS, "scripted", "tests.support.scripted:ScriptedTransport")
    monkeypatch.setitem(
        registry.TRANSPORTS, "local", "tests.unit.commands.test_once:LocalTransport"
    )
    orders.reset()


def sample_once(scheme: str, directory: Path | None = None) -> bool:
    """Sample once for the sinks `first` and `second`."""
    names = ("first", "second")
    table: dict[str, Any] = {
        "agents": {"scripted": {}},
        "sinks": {name: {"url": f"{scheme}:{name}"} for name in names},
    }
    if directory is not None:
        table["outbox"] = {"directory": str(directory)}
    return run_once(check(table, "test"), "scripted")


def fail_for(url: str, error: Exception) -> Callable[[str], None]:
    """Return what raises an error in the transport of a URL."""

    def fail(each: str) -> None:
        if each == url:
            raise error

    return fail


ERRORS = [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "Too many open files")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_unforeseen_error_of_a_sink_costs_itself_only(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    orders.on_send = fail_for("local:first", error)
    assert not sample_once("local")
    assert orders.taken == {"local:second": [1]}
    assert "sink first: unforeseen error" in caplog.text
    assert "sink second" not in caplog.text


def test_a_sink_that_cant_be_closed_costs_itself_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[LocalTransport] = []

    def fail_once(transport: LocalTransport) -> None:
        closed.append(transport)
        if len(closed) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalTransport, "close", fail_once)
    assert not sample_once("local")
    assert len(closed) == 2
    assert "sink first: unforeseen error" in caplog.text


def test_a_queue_that_fails_costs_its_own_sink_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = Queue.put

    def fail_to_put(queue: Queue, messages: Any) -> int:
        if queue.name == "first":
            raise MemoryError
        return put(queue, messages)

    monkeypatch.setattr(Queue, "put", fail_to_put)
    assert not sample_once("scripted", tmp_path / "outbox")
    assert orders.taken == {"scripted:second": [1]}
    assert "sink first: unforeseen error" in caplog.text


def test_the_end_of_the_reader_is_no_unforeseen_error(caplog: pytest.LogCaptureFixture) -> None:
    orders.on_send = fail_for("local:first", BrokenPipeError())
    with pytest.raises(BrokenPipeError):
        sample_once("local")
    assert orders.taken == {"local:second": [1]}
    assert not caplog.records
