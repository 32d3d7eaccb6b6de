"""A broker with TLS and access lists, a scheduler, and an agent in a daemon of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ccagent.agents.fast.runtime import FastRuntime
from ccagent.agents.fast.settings import FastSettings
from ccagent.machine.node import Node
from tests.support.certificates import Authority
from tests.support.fast_scheduler import FastScheduler
from tests.support.mqtt_broker import Broker
from tests.support.running import CCAGENT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

_ACCESS = """
user scheduler
topic write fast/agent/+/task/#
topic write fast/agent/+/mmbwmon/request
topic write fast/migfra/+/result
topic read fast/agent/+/status
topic read fast/agent/+/mmbwmon/response

user node
topic write fast/agent/c1/status
topic write fast/agent/c1/mmbwmon/response
topic read fast/agent/c1/task/#
topic read fast/agent/c1/mmbwmon/request
topic read fast/migfra/c1/result
topic read fast/application/#

user job
topic write fast/application/#
"""
_PASSWORDS = {"scheduler": "one", "node": "two", "job": "three"}
_CONFIGURATION = """
cluster = "fox"
hostname = "c1"
status-socket = "{directory}/status.sock"
[agents.fast]
url = "{url}"
user = "node"
password-file = "{directory}/password"
ca-file = "{ca}"
state-directory = "{directory}/state"
jobs = false                                    # other tests may run some
machines = "{machines}"
{more}
"""


class FastSite(NamedTuple):
    """A broker and its CA."""

    broker: Broker
    ca: str
    directory: Path

    def settings(self) -> FastSettings:
        """Return the settings of an agent of this site."""
        return FastSettings(
            url=self.broker.url("mqtts"),
            user="node",
            password_file=self.password(),
            ca_file=self.ca,
            state_directory=str(self.directory / "state"),
            jobs=False,
            machines="none",
        )

    def password(self) -> str:
        """Write the password of the node, and return the file."""
        password = self.directory / "password"
        password.write_text("two\n")
        password.chmod(0o600)
        return str(password)

    def scheduler(self, user: str = "scheduler") -> FastScheduler:
        return FastScheduler(
            self.broker.ports["mqtts"],
            user=user,
            password=_PASSWORDS[user],
            ca=self.ca,
            name=user,
        )


class FastDaemon:
    """A daemon with [agents.fast] alone."""

    def __init__(self, site: FastSite, more: str = "", *, has_machines: bool = False) -> None:
        self.directory = site.directory
        self.file = site.directory / "ccagent.toml"
        self.file.write_text(
            _CONFIGURATION.format(
                url=site.broker.url("mqtts"),
                ca=site.ca,
                directory=site.directory,
                more=more,
                machines="all" if has_machines else "none",
            )
        )
        site.password()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*CCAGENT, "run", "-v", "--config", str(self.file)], stderr=log
            )

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill it with -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it with SIGTERM and return its exit status."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        return self._process.wait(30)


@contextmanager
def running(settings: FastSettings) -> Generator[FastRuntime]:
    """An agent in this process."""
    runtime = FastRuntime(Node(hostname="c1", cluster="fox"), settings)
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.close()


@pytest.fixture
def fast_site(tmp_path: Path, authority: Authority) -> Iterator[FastSite]:
    """A mosquitto that writes its state to the disk with each change."""
    access = tmp_path / "access"
    access.write_text(_ACCESS)
    access.chmod(0o600)
    certificate, key = authority.certify("broker")
    broker = Broker(
        tmp_path / "broker",
        f"acl_file {access}\nautosave_on_changes true\nautosave_interval 1",
        passwords=_PASSWORDS,
        certificate=(authority.certificate, certificate, key),
    )
    yield FastSite(broker, authority.certificate, tmp_path)
    broker.kill()


@pytest.fixture
def fast_scheduler(fast_site: FastSite) -> Iterator[FastScheduler]:
    scheduler = fast_site.scheduler()
    yield scheduler
    scheduler.stop()
