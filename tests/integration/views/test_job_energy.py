"""`ccagent job` on the node and from the store prints the same energy of a job."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.energy.meter import EnergyMeter, EnergyTick
from ccagent.config.configuration import GlobalSettings, check
from ccagent.daemon.daemon import Daemon
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.views.job.formats import format_report
from ccagent.views.job.local import measure_here
from ccagent.views.job.rules import make_report
from ccagent.views.terminal import Style
from tests.integration.views.conftest import JobStore
from tests.integration.views.test_job_report import run
from tests.support.energy_tree import EnergyNode
from tests.support.running import until

JOB = 7
MINUTE = 60.0


class SteppedDaemon:
    """A daemon on a composed node. Each step is a minute of the node, followed by one sample.

    Between two steps the agent repeats its last sample.
    """

    def __init__(self, node: EnergyNode, store: str, socket: Path) -> None:
        self.node, self.socket = node, socket
        self.table: dict[str, Any] = {
            "cluster": "fox",
            "status-socket": str(socket),
            "agents": {"energy": {"every": "1s", "rapl": "powercap", "gpu-vendors": []}},
            "sinks": {"store": {"url": f"{store}/api/write/?cluster=fox", "format": "line"}},
        }
        self._waiting: list[Callable[[], None]] = []
        self._done = 0

    @contextmanager
    def running(self) -> Generator[None]:
        """Run the daemon in a thread."""
        tick = EnergyMeter.tick

        def tick_after_step(meter: EnergyMeter, node: Node) -> EnergyTick:
            if not self._waiting and meter.last is not None:
                return meter.last
            if self._waiting:
                self._waiting.pop()()
            found = tick(meter, node)
            self._done += 1
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GlobalSettings, "make_node", self._make_node)
            patch.setattr(EnergyMeter, "tick", tick_after_step)
            daemon = Daemon(lambda: check(self.table, "test"), Clock(), serves_status=True)
            thread = threading.Thread(target=daemon.run)
            thread.start()
            try:
                until(lambda: self._done)
                yield
            finally:
                daemon.stop()
                thread.join()

    def _make_node(self, *_: object) -> EnergyNode:
        return self.node

    def step(self, change: Callable[[], None], seconds: float = MINUTE) -> None:
        """Change the node, let time pass, and wait for the sample."""

        def pass_time() -> None:
            change()
            self.node.still.sleep(seconds)

        done = self._done
        self._waiting.append(pass_time)
        until(lambda: self._done > done)

    def report(self) -> str:
        """Return the line of the energy in the report of this node."""
        figures = measure_here(JOB, str(self.socket), self.node)
        return energy_line(format_report(make_report(figures), Style(is_plain=True), 100))


def energy_line(report: str) -> str:
    (line,) = [line for line in report.splitlines() if line.startswith("energy")]
    return line


def test_the_node_and_the_store_print_the_same_energy(tmp_path: Path, jobs: JobStore) -> None:
    node = EnergyNode(tmp_path / "node")
    node.zones()
    begin = jobs.end - 600
    node.still.wall = float(begin)

    def work(joules: float) -> None:
        node.work(JOB, {0: 3000, 1: 2000})
        for zone in ("0", "1", "0:0", "1:0"):
            node.spend(zone, joules)

    def damage() -> None:
        work(100.0)
        node.write("sys/class/powercap/intel-rapl:0/energy_uj", "damaged\n")

    def tell(function: str, **content: object) -> None:
        start = {"jobId": JOB, "cluster": "fox", "startTime": begin, **content}
        event = json.dumps(json.dumps(start))
        assert jobs.store.write(f"job,function={function} event={event} {begin}\n").status == 200

    daemon = SteppedDaemon(node, jobs.url, tmp_path / "status.sock")
    with daemon.running():
        daemon.step(lambda: node.job(JOB, "0-2"))
        tell("start_job", resources=[{"hostname": "n1"}])
        for joules in (9000.0, 3000.0, 4711.0, 1234.5):
            daemon.step(partial(work, joules))
        daemon.step(damage)
        daemon.step(partial(work, 50.0))
        here = daemon.report()
        daemon.step(partial(node.end, JOB), seconds=0.001)
        tell("stop_job", stopTime=jobs.end, jobState="completed")
        command = (str(JOB), "--plain", "--store", jobs.url)
        until(lambda: "% covered" in run(*command).stdout)
    assert energy_line(run(*command).stdout) == here
    assert re.fullmatch(r"energy  [0-9.]+ Wh \([0-9.]+ Wh to [0-9.]+ Wh\)   [78]\d % covered", here)
