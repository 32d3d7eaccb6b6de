"""A started machine is ready when an ssh server answers at its name."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from ccagent.agents.fast.messages.structures import MachineConfiguration, MachineOutcome
from ccagent.config.duration import Duration
from ccagent.machines.hypervisor import Hypervisor, MachineState
from ccagent.machines.operations import Operations
from ccagent.machines.settings import MigfraSettings
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "127.0.0.1"


class StartedMachine(Hypervisor):
    """A daemon that knows one machine. `stops_after`: number of looks until it is off."""

    def __init__(self, stops_after: int = 10**9) -> None:
        super().__init__("test", "c1-1", lambda _uri: None)
        self.is_active, self._left = False, stops_after

    def look(self, name: str) -> MachineState | None:
        if self.is_active:
            self._left -= 1
            self.is_active = self._left > 0
        state = "running" if self.is_active else "shut off"
        return MachineState(state, self.is_active, True, False, False, "1")

    def require(self, name: str) -> MachineState:
        return cast("MachineState", self.look(name))

    def configure(self, name: str, memory: int | None, vcpus: int | None) -> None:
        pass

    def call(self, name: str, function: Callable[[Any], Any]) -> Any:
        return function(self)

    def create(self) -> None:
        self.is_active = True

    def destroy(self) -> None:
        self.is_active = False


def start(directory: Path, machine: StartedMachine, port: int, **keys: Any) -> MachineOutcome:
    settings = MigfraSettings(url="mqtt://h", ready_port=port, start_limit=Duration("10ms"), **keys)
    operations = Operations(TreeNode(directory), settings, cast("Any", None), lambda _uri: None)
    operations.here = machine
    return operations.start(MachineConfiguration(name=NAME))


@pytest.fixture
def silent() -> Any:
    """A port where nobody listens."""
    with socket.socket() as bound:
        bound.bind((NAME, 0))
        yield bound.getsockname()[1]


@pytest.mark.slow
def test_a_machine_with_ssh_is_ready(tmp_path: Path) -> None:
    with socket.create_server((NAME, 0)) as server:

        def answer() -> None:
            for banner in (b"HTTP", b"SSH-2.0-x\r\n"):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(banner)

        threading.Thread(target=answer, daemon=True).start()
        settings = MigfraSettings(url="mqtt://h", ready_port=server.getsockname()[1])
        operations = Operations(TreeNode(tmp_path), settings, cast("Any", None), lambda _uri: None)
        operations.here = StartedMachine()
        outcome = operations.start(MachineConfiguration(name=NAME))
    assert (outcome.is_success, outcome.state) == (True, "running")


@pytest.mark.slow
def test_a_machine_that_does_not_answer_runs_on(tmp_path: Path, silent: int) -> None:
    outcome = start(tmp_path, StartedMachine(), silent)
    assert (outcome.is_success, outcome.state) == (False, "running")
    assert outcome.details == (
        "Timeout while trying to reach domain with SSH: running, not reachable after 0.01 s"
    )


@pytest.mark.slow
def test_a_machine_that_does_not_answer_is_destroyed_if_wanted(tmp_path: Path, silent: int) -> None:
    outcome = start(tmp_path, StartedMachine(), silent, destroy_unready=True)
    assert (outcome.is_success, outcome.state, outcome.host) == (False, "shut off", "")
    assert "destroyed after" in outcome.details


def test_a_machine_that_stops_during_its_start_is_an_error(tmp_path: Path, silent: int) -> None:
    outcome = start(tmp_path, StartedMachine(stops_after=1), silent)
    assert (outcome.is_success, outcome.details) == (
        False, "the machine stopped during its start",
    )  # fmt: skip


def test_a_machine_is_not_probed_if_the_task_says_so(tmp_path: Path, silent: int) -> None:
    settings = MigfraSettings(url="mqtt://h", ready_port=silent)
    operations = Operations(TreeNode(tmp_path), settings, cast("Any", None), lambda _uri: None)
    operations.here = StartedMachine()
    assert operations.start(MachineConfiguration(name=NAME, probes=False)).is_success
