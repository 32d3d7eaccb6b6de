"""The status socket goes on after whatever happens to it; messages to systemd, at a true socket."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError, UnparsableError
from ccagent.service.status import Notifier, Status, StatusSocket, read_status
from tests.support.notify_socket import NotifySocket


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


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> NotifySocket:
    abstract = f"@ccagent-test-{os.getpid()}"
    return NotifySocket(abstract if request.param == "abstract" else tmp_path / "notify")


def test_states_are_told_at_a_path_and_in_the_abstract_namespace(manager: NotifySocket) -> None:
    with manager:
        notifier = Notifier({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "3000000"})
        notifier.ready("agents: sample")
        assert manager.receive() == "READY=1\nSTATUS=agents: sample"
        notifier.alive()
        assert manager.receive() == "WATCHDOG=1"
        notifier.reloading()
        reloading, _, moment = manager.receive().partition("\nMONOTONIC_USEC=")
        assert reloading == "RELOADING=1"
        assert int(moment) > 0
        notifier.stopping()
        assert manager.receive() == "STOPPING=1"
        notifier.close()
        notifier.ready("")


def test_the_status_stays_one_line_of_moderate_length(manager: NotifySocket) -> None:
    with manager:
        notifier = Notifier({"NOTIFY_SOCKET": manager.name})
        notifier.ready("a\nMAINPID=1\r" + "b" * 10000)
        ready, status = manager.receive().split("\n")
        assert ready == "READY=1"
        assert status.startswith("STATUS=a\\nMAINPID=1\\rbbb")
        assert len(status) < 600
        notifier.close()


def test_programs_started_later_do_not_see_the_variables() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    Notifier(environment).close()
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_this_process_s(variables: dict[str, str], seconds: float | None) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere", **variables})
    assert notifier.watchdog == seconds
    notifier.close()


def test_without_a_watchdog_life_is_not_told(manager: NotifySocket) -> None:
    with manager:
        notifier = Notifier({"NOTIFY_SOCKET": manager.name})
        notifier.alive()
        notifier.stopping()
        assert manager.receive() == "STOPPING=1"
        notifier.close()


def test_a_manager_that_is_not_there_or_does_not_read_stops_nothing(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "1"})
    notifier.ready("")
    notifier.close()
    with NotifySocket(tmp_path / "full") as manager:
        notifier = Notifier({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "1"})
        for _ in range(10000):
            notifier.alive()
        notifier.close()


@pytest.mark.parametrize("name", ["", "relative", "vsock:2:1234"])
def test_without_a_socket_nothing_is_sent(name: str, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
    notifier.ready("")
    notifier.stopping()
    assert notifier.watchdog is None
    assert (f"$NOTIFY_SOCKET: {name}" in caplog.text) == bool(name)
    notifier.close()


def test_a_path_longer_than_the_kernel_takes() -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/" + "x" * 500})
    notifier.ready("")
    notifier.close()
