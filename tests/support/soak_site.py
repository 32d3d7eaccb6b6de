"""A site with every service of ccagent on loopback: the daemon, both stores, controls, servers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.integration.controls.conftest import RunningService
from tests.support import control_machines
from tests.support.http_server import Server
from tests.support.jobstats_store import RunningJobstatsStore
from tests.support.kafka_cluster import Cluster
from tests.support.metric_store import RunningStore
from tests.support.mqtt_broker import Broker
from tests.support.nats_server import NatsServer, new_seed, public_key
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.running import Running, until

if TYPE_CHECKING:
    from types import TracebackType

AGENTS = ("sample", "sysinfo", "metrics", "energy", "jobio", "lustre", "jobs", "cluster", "log")
_CONTROLS = """\
hostname = "n1.fox"
cluster = "fox"
[controls.allow."os.swappiness"]
min = 0
max = 100
from = ["key:{key}"]
[controls]
url = "{url}"
subjects = ["cc-control"]
"""


class SoakSite:
    """All services, started together. The agent `jobs` and others lack Slurm and Lustre here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = contextlib.ExitStack()
        self.seed = new_seed()
        self.exporter_port = free_port()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        directory = self.directory
        self.nats = NatsServer(directory / "nats", with_jetstream=False)
        stack.callback(self.nats.kill)
        self.broker = Broker(directory / "mqtt")
        stack.callback(self.broker.kill)
        self.web = Server()
        stack.callback(self.web.stop)
        self.kafka = Cluster()
        postgres = stack.enter_context(PostgresServer())
        config = directory / "store.toml"
        config.write_text(
            'memory-cap = "64MB"\n'
            f'[nats]\nurl = "{self.nats.url}"\n'
            '[[nats.subscriptions]]\nsubject = "fox.lines"\ncluster = "fox"\n'
        )
        self.metrics = stack.enter_context(
            RunningStore(directory / "metrics", "--frequency", "1s", "--config", str(config))
        )
        self.jobstats = stack.enter_context(
            RunningJobstatsStore(directory / "jobstats", "--database", postgres.make_database())
        )
        root = directory / "machine"
        control_machines.intel(root)
        table = _CONTROLS.format(key=public_key(self.seed), url=self.nats.url)
        self.controls = RunningService(directory / "controls", root, table)
        stack.callback(self.controls.kill)
        self.daemon = Running(directory)
        stack.callback(self.daemon.kill)
        self.daemon.start(self.configuration(0))
        until(lambda: "exporter: listening" in self.daemon.said())

    def configuration(self, number: int) -> str:
        """Return the daemon's configuration; each number changes exporter and agents."""
        agents = "".join(f'[agents.{name}]\nevery = "2s"\n' for name in AGENTS)
        directory = self.directory
        return (
            'cluster = "fox"\nhostname = "c1"\nstatus-socket = ""\n'
            f'[outbox]\ndirectory = "{directory}/outbox"\n'
            f'{agents}[agents.fast]\nurl = "{self.broker.url()}"\njobs = false\n'
            f'state-directory = "{directory}/fast"\n'
            f'[exporter]\nlisten = ["127.0.0.1:{self.exporter_port}"]\n'
            f"clients = {30 + number % 10}\n"
            'names = ["ccagent", "node_exporter"]\n'
            '[sinks.dir]\nurl = "dir:OUT"\n'
            f'[sinks.nats]\nurl = "{self.nats.url}"\n'
            f'[sinks.mqtt]\nurl = "{self.broker.url()}"\n'
            f'[sinks.http]\nurl = "http://{self.web.place}/in"\n'
            f'[sinks.kafka]\nurl = "kafka://{self.kafka.place}"\n'
            f'[sinks.store]\nformat = "line"\n'
            f'url = "http://127.0.0.1:{self.metrics.port}/api/write/?cluster={{cluster}}"\n'
        )

    def processes(self) -> dict[str, int]:
        """Return the process ids of ccagent's programs."""
        found = {
            "daemon": self.daemon.process,
            "metrics": self.metrics.process,
            "jobstats": self.jobstats.process,
            "controls": self.controls.process,
        }
        return {name: process.pid for name, process in found.items() if process is not None}

    def logs(self) -> dict[str, str]:
        """Return the logs of the programs."""
        return {
            "daemon": self.daemon.said(),
            "metrics": self.metrics.log.read_text(),
            "jobstats": self.jobstats.said(),
            "controls": self.controls.log,
        }

    def resident(self) -> dict[str, float]:
        """Return the resident memory of each program in MiB."""
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page / 2**20
            for name, pid in self.processes().items()
        }
