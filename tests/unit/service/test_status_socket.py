"""The status socket goes on after whatever happens to it."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError, UnparsableError
from ccagent.service.status_socket import Status, StatusSocket, read_status


def status() -> Status:
    return Status(
        version="1", cluster="x", node="c1", pid=1, seconds=1.0, cpu_seconds=0.1,
        resident_memory=1, agents={}, sinks={},
    )  # fmt: skip


class Reporter:
    """Reports the state, or raises what the test has put there."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def __call__(self) -> Status:
        if self.errors:
            raise self.errors.pop()
        return status()


@pytest.fixture
def reporter() -> Reporter:
    return Reporter()


@pytest.fixture
def listening(
    tmp_path: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StatusSocket]:
    monkeypatch.setattr(StatusSocket, "pause", 0.01)
    made = StatusSocket(str(tmp_path / "sock"), reporter)
    yield made
    made.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.005)


def test_a_shortage_of_descriptors_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = socket.socket.accept
    refusals = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED]

    def refuse(listening: socket.socket) -> tuple[socket.socket, object]:
        if refusals:
            number = refusals.pop()
            raise OSError(number, os.strerror(number))
        return accept(listening)

    monkeypatch.setattr(StatusSocket, "pause", 0.01)
    monkeypatch.setattr(socket.socket, "accept", refuse)
    listening = StatusSocket(str(tmp_path / "sock"), status)
    assert read_status(str(tmp_path / "sock")).node == "c1"
    assert refusals == []
    assert "Too many open files" in caplog.text
    listening.close()


@pytest.mark.parametrize("error", [ZeroDivisionError(), MemoryError(), SystemExit(1)])
def test_no_error_ends_it(
    listening: StatusSocket,
    reporter: Reporter,
    tmp_path: Path,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporter.errors.append(error)
    with pytest.raises((UnparsableError, NotHereError)):
        read_status(str(tmp_path / "sock"))
    until(lambda: listening.restarts == 1)
    assert read_status(str(tmp_path / "sock")).node == "c1"
    assert "an answer failed" in caplog.text


def test_without_a_thread_there_is_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        StatusSocket(str(tmp_path / "sock"), status).close()
    assert not (tmp_path / "sock").exists()
    assert "can't start new thread; no status" in caplog.text


def test_restarts_are_shown() -> None:
    assert "restarted" not in status().line()
    restarted = status()
    restarted.restarts = 2
    assert "restarted 2 times" in restarted.line()
