"""Two libvirt daemons, a broker, a framework on each host, and a scheduler."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.libvirt_hosts import LibvirtHost, LibvirtSite
from tests.support.machine_scheduler import MachineScheduler
from tests.support.mqtt_broker import Broker
from tests.support.running import CCAGENT, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIGURATION = """
cluster = "fox"
hostname = "{name}"
[migfra]
url = "{url}"
{login}
state-directory = "{state}"
hypervisor = "{uri}"
run-directory = "{run}"
peer-to-peer = {peer}
ready = "running"
spare-jobs = false
stop-limit = "3s"
pscom-limit = "5s"
{keys}
[migfra.allow]
tasks = [
    "start vm", "stop vm", "suspend vm", "resume vm", "repin vm", "migrate vm", "evacuate node",
]
machines = ["vm-[a-z0-9]+"]
destinations = {{ {other} = "{other_uri}", lost = "qemu:///session?socket=/nowhere" }}
migrate-uris = {{ {other} = "{other_data}", {name} = "{data}" }}
cpus = "0-1"
force = true
undefine = true
xml = "checked"
templates = "{templates}"
images = "{templates}"
pci-ids = ["ffff:0001"]
max-memory = "64M"
{policy}
"""


class FrameworkProcess:
    """A service `ccagent migfra run` on a host."""

    def __init__(self, site: LibvirtSite, host: LibvirtHost, broker: Broker) -> None:
        self.host = host
        self.directory = site.directory / f"migfra-{host.name}"
        self.directory.mkdir(exist_ok=True)
        self._site = site
        self._broker = broker
        self.login = "allow-cleartext = true"
        """Keys of the client of the broker."""
        self.is_peer_to_peer = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, keys: str = "", policy: str = "") -> None:
        (other,) = [each for each in self._site.hosts if each is not self.host]
        scheme = "mqtts" if "mqtts" in self._broker.ports else "mqtt"
        file = self.directory / "ccagent.toml"
        file.write_text(
            _CONFIGURATION.format(
                name=self.host.name, url=self._broker.url(scheme), login=self.login,
                state=self.directory / "state",
                uri=self.host.uri, run=self.host.run_directory, other=other.name,
                other_data=other.migrate_uri, data=self.host.migrate_uri,
                other_uri=other.tcp_uri if self.is_peer_to_peer else other.uri,
                peer=str(self.is_peer_to_peer).lower(), templates=self._site.directory,
                keys=keys, policy=policy,
            )
        )  # fmt: skip
        subscribed = self._broker.log.count(self._subscription)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*CCAGENT, "migfra", "run", "--verbose", "--config", str(file)], stderr=log
            )
        until(lambda: self._broker.log.count(self._subscription) > subscribed)

    @property
    def _subscription(self) -> str:
        return f"\tfast/migfra/{self.host.name}/task (QoS 1)"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def kill(self) -> None:
        """Kill it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(30) == 0, self.log


class MachineSite:
    """The two hosts with their frameworks, and the scheduler."""

    def __init__(
        self, directory: Path, broker: Broker | None = None, kind: type[LibvirtHost] = LibvirtHost
    ) -> None:
        self.libvirt = LibvirtSite(kind)
        self.broker = broker or Broker(directory / "broker")
        self.first, self.second = self.libvirt.hosts
        self.frameworks = [
            FrameworkProcess(self.libvirt, host, self.broker) for host in self.libvirt.hosts
        ]
        if broker is None:
            self.scheduler = MachineScheduler(self.broker.ports["mqtt"])

    def run(self, name: str, **more: Any) -> None:
        """Define and start a machine on the first host."""
        self.first.virsh("define", str(self.libvirt.definition(name, **more)))
        self.first.virsh("start", name)
        self.libvirt.lives(name)

    def remove(self, name: str) -> None:
        """Remove a machine from both hosts."""
        for host in self.libvirt.hosts:
            state = host.machines().get(name, "")
            if state not in {"", "shut off"}:
                host.virsh("destroy", name)
            if name in host.machines():
                host.virsh("undefine", name)

    def stop(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.stop()
        for framework in self.frameworks:
            framework.stop()
        self.broker.kill()
        self.libvirt.stop()


@pytest.fixture(scope="module")
def machine_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineSite]:
    """Two hosts with running frameworks."""
    site = MachineSite(tmp_path_factory.mktemp("machines"))
    try:
        for framework in site.frameworks:
            framework.start()
        yield site
    finally:
        site.stop()
