"""What the daemon tells systemd in the course of its life."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.notify_socket import NotifySocket
from tests.support.running import Running, until

SAMPLE = """
[agents.sample]
every = "1s"
[sinks.tree]
url = "dir:OUT"
"""
WATCHDOG = "WATCHDOG=1"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    with NotifySocket(tmp_path / "notify") as socket:
        monkeypatch.setenv("NOTIFY_SOCKET", socket.name)
        monkeypatch.setenv("WATCHDOG_USEC", "600000")
        yield socket


@pytest.fixture
def daemon(tmp_path: Path, manager: NotifySocket) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.kill()


def test_start_reload_and_end_are_told(daemon: Running, manager: NotifySocket) -> None:
    daemon.start(SAMPLE)
    assert manager.receive() == "READY=1\nSTATUS=agents: sample; sinks: tree"
    assert manager.receive() == WATCHDOG

    daemon.reload(SAMPLE + '[sinks.more]\nurl = "dir:OUT/more"\n')
    assert manager.next_but(WATCHDOG).startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert manager.next_but(WATCHDOG) == "READY=1\nSTATUS=agents: sample; sinks: tree, more"

    daemon.reload(SAMPLE.replace("every", "evry"))
    assert manager.next_but(WATCHDOG).startswith("RELOADING=1")
    assert "READY=1\nSTATUS=configuration not read again, the old one" in manager.next_but(WATCHDOG)
    until(lambda: "ccagent: error: configuration not read again" in daemon.said())
    assert daemon.said().count("configuration not read again") == 1

    assert daemon.stop() < 30
    assert manager.next_but(WATCHDOG) == "STOPPING=1"


def test_the_watchdog_hears_of_an_idle_daemon_and_not_of_one_that_hangs(
    daemon: Running, manager: NotifySocket
) -> None:
    daemon.start(SAMPLE.replace("1s", "1h"))
    assert manager.receive().startswith("READY=1")
    assert [manager.receive() for _ in range(4)] == [WATCHDOG] * 4
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    manager.pending()
    time.sleep(1)
    assert manager.pending() == []
    os.kill(daemon.process.pid, signal.SIGCONT)
    assert manager.receive() == WATCHDOG


def test_an_agent_that_hangs_is_no_reason_to_restart_the_others(
    daemon: Running, manager: NotifySocket
) -> None:
    daemon.start("""
        [agents.sysinfo]
        every = "1h"
        on-startup = true
        time-limit = "1s"
        topo-text-command = "sleep 100"
        topo-time-limit = "90s"
        [sinks.tree]
        url = "dir:OUT"
        """)
    assert manager.receive().startswith("READY=1")
    until(lambda: "it hangs" in daemon.said())
    manager.pending()
    assert manager.receive() == WATCHDOG


def test_a_daemon_that_can_not_start_is_never_ready(daemon: Running, manager: NotifySocket) -> None:
    daemon.start(SAMPLE.replace("every", "evry"))
    assert daemon.process is not None
    assert daemon.process.wait(60) == 2
    assert manager.pending() == []
