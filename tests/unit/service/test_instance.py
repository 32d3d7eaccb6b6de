"""What is told to systemd, at a socket as it makes them; locks of services in their directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.service.instance import Notifier, lock_directory
from tests.support.notify_socket import NotifySocket


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


def test_a_directory_that_cant_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file/state")
    with pytest.raises(ConfigurationError) as raised:
        lock_directory(directory, "lock", "controls.state-directory")
    assert str(raised.value) == f"controls.state-directory: {directory}: Not a directory"
