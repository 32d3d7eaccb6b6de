"""Keys of the daemon's configuration, set over NATS and taken over by a running daemon."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tests.support.control_machines import MachineNode
from tests.support.running import Running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.controls.conftest import ControlClient, RunningService
    from tests.support.nats_server import NatsServer


def request(name: str, method: str = "GET", value: str = "") -> str:
    tags = f"hostname=n1,method={method},type=node,type-id=0"
    return f'{name},{tags} control="{value}" {time.time_ns()}'


def test_an_agent_is_turned_off_and_on_in_a_running_daemon(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    shared = (
        f'hostname = "n1"\nlock-directory = "{tmp_path}"\n'
        f'status-socket = "{tmp_path}/status.sock"\n'
        '[agents.sysinfo]\nevery = "1d"\n'
        f'[sinks.files]\nurl = "dir:{tmp_path}/data"\n'
        '[controls.allow."config.agents.sysinfo"]\n'
        '[controls.allow."config.agents.sysinfo.every"]\nvalues = ["12h"]\n'
        f'[controls]\nurl = "{server.url}"\noverrides = "{tmp_path}/run/overrides.toml"\n'
    )
    daemon = Running(tmp_path / "daemon")
    daemon.directory.mkdir()
    daemon.start(shared)
    service = start(MachineNode(tmp_path / "machine").path, shared)

    def announced() -> int:
        return daemon.log.read_text().count("configuration read again")

    try:
        service.wait_for(lambda: "started" in daemon.log.read_text())
        (answer,) = client.ask(request("config"))
        assert json.loads(str(answer.value))["agents"] == {"sysinfo": {"every": "1d"}}
        (answer,) = client.ask(request("config.agents.sysinfo.every", "PUT", "12h"))
        service.wait_for(lambda: announced() == 1)
        (answer,) = client.ask(request("config"))
        assert json.loads(str(answer.value))["agents"] == {"sysinfo": {"every": "12h"}}
        client.ask(request("restore", "PUT"))
        service.wait_for(lambda: announced() == 2)
        (answer,) = client.ask(request("config.agents.sysinfo.every"))
        assert answer.value == "1d"
    finally:
        daemon.stop()
