"""The whole loop: two nodes, three guests, a bandwidth hog; proposal, migration, KPIs after it.

The broker has TLS, logins and access lists. Tasks are signed.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.machines.conftest import MachineSite
from tests.support.mqtt_broker import Broker
from tests.support.nats_server import new_seed, public_key
from tests.support.running import CCAGENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.certificates import Authority

_NODE = """
user {name}
topic write fast/agent/{name}/status
topic write fast/migfra/{name}/result
topic read fast/agent/{name}/task/#
topic read fast/agent/{name}/mmbwmon/request
topic read fast/migfra/{name}/task
topic read fast/migfra/{name}/result
topic read fast/application/#
topic write fast/migfra/+/locate
topic read fast/migfra/{name}/locate
topic write fast/migfra/{name}/located
topic read fast/migfra/+/located
"""
_ACCESS = """
user scheduler
topic write fast/agent/+/task/#
topic write fast/migfra/+/task
topic write fast/agent/+/mmbwmon/request
topic read fast/agent/+/status
topic read fast/agent/+/mmbwmon/response
topic read fast/migfra/+/result
topic read fast/application/#
"""
_AGENT = """
cluster = "fox"
hostname = "{name}"
status-socket = "{directory}/status.sock"
[agents.fast]
url = "{url}"
{login}
state-directory = "{directory}/state"
jobs = false
machines = "libvirt"
run-directory = "{run}"
"""


class ScheduledSite:
    """Two nodes, each with libvirt, a framework and an agent; a scheduler's configuration."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        access = directory / "access"
        access.write_text(_ACCESS + "".join(_NODE.format(name=name) for name in ("s1", "s2")))
        access.chmod(0o600)
        self._ca = authority.certificate
        self._directory = directory
        seed = new_seed()
        self.seed_file = directory / "seed"
        self.seed_file.write_text(f"{seed}\n")
        self.seed_file.chmod(0o600)
        broker = Broker(
            directory / "broker",
            f"acl_file {access}",
            passwords={"scheduler": "a", "s1": "b", "s2": "c"},
            certificate=(self._ca, *authority.certify("broker")),
        )
        self.machines = MachineSite(directory, broker)
        self.agents: list[subprocess.Popen[bytes]] = []
        for framework, password in zip(self.machines.frameworks, ("b", "c"), strict=True):
            framework.login = self._login(framework.host.name, password)
            framework.start("", f'signed-by = ["{public_key(seed)}"]')
            self.agents.append(self._start_agent(framework.host.name, framework.login))
        self.file = self._configure("scheduler", self._login("scheduler", "a"))

    def schedule(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CCAGENT, "fast", "schedule", "--config", str(self.file), "--nodes", "s1,s2",
             "--seconds", "5", "--limit", "4", *options],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def stop(self) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)
        self.machines.stop()

    def _login(self, name: str, password: str) -> str:
        file = self._directory / f"{name}.password"
        file.write_text(f"{password}\n")
        file.chmod(0o600)
        return f'user = "{name}"\npassword-file = "{file}"\nca-file = "{self._ca}"'

    def _configure(self, name: str, login: str) -> Path:
        directory = self._directory / name
        directory.mkdir()
        run = {host.name: host.run_directory for host in self.machines.libvirt.hosts}.get(name, "/")
        url = self.machines.broker.url("mqtts")
        text = _AGENT.format(name=name, directory=directory, url=url, login=login, run=run)
        (directory / "ccagent.toml").write_text(text)
        return directory / "ccagent.toml"

    def _start_agent(self, name: str, login: str) -> subprocess.Popen[bytes]:
        file = self._configure(name, login)
        with (file.parent / "log").open("wb") as log:
            return subprocess.Popen([*CCAGENT, "run", "--config", str(file)], stderr=log)


@pytest.fixture
def scheduled(tmp_path: Path, authority: Authority) -> Iterator[ScheduledSite]:
    site = ScheduledSite(tmp_path, authority)
    yield site
    site.stop()


def test_two_hogs_of_one_node_are_moved_apart(scheduled: ScheduledSite) -> None:
    site = scheduled.machines
    for name in ("vm-1", "vm-2"):
        site.run(name, guest="hog")
    site.second.virsh("create", str(site.libvirt.definition("vm-3")))
    proposed = scheduled.schedule("--dry-run")
    assert proposed.returncode == 0, proposed.stderr
    assert "move vm-" in proposed.stdout, proposed.stdout
    assert "from s1 to s2" in proposed.stdout
    assert site.first.machines() == {"vm-1": "running", "vm-2": "running"}

    unsigned = scheduled.schedule("--apply")
    assert "signature: none of a key" in unsigned.stderr
    assert site.first.machines() == {"vm-1": "running", "vm-2": "running"}
    applied = scheduled.schedule("--apply", "--sign", str(scheduled.seed_file))
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert ": moved, running on s2" in applied.stdout
    moved = "vm-1" if "vm-1: moved" in applied.stdout else "vm-2"
    assert site.libvirt.where(moved) == [("s2", "running")]
    # The agent of the target finds the machine, though no message names its process.
    after = applied.stdout.partition(": moved")[2].partition("node s2")[2]
    assert f"machine {moved}" in after
    assert "machine vm-3" in after

    again = scheduled.schedule("--dry-run")
    assert "no proposal" in again.stdout, again.stdout
