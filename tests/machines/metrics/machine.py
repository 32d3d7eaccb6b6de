"""A machine of which two readings are known, and what the agent makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.base import ReaderSettings
from ccagent.agents.metrics.readers.nvme import NvmeReader, NvmeSettings
from ccagent.agents.metrics.settings import READERS, MetricsSettings
from ccagent.config.files import convert
from ccagent.errors import NotHereError
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from tests.machines.metrics.files import Files, Reading
from tests.support.perf_counters import StandIn

START = 1_795_262_400.0

HARDWARE = (
    "cpu", "memory", "pressure", "network", "infiniband", "nfs", "disk", "filesystem", "power",
    "temperature", "cgroup-jobs", "perf",
)  # fmt: skip
"""The readers of what files and counters tell."""


class SteppingClock(Clock):
    """A clock that stands still, but for sleeping: however long that is, `step` is called."""

    def __init__(self, step: Callable[[], float]) -> None:
        self._passed = 50_000.0
        self._step = step

    def time(self) -> float:
        return START + self._passed

    def monotonic(self) -> float:
        return self._passed

    def uptime(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += self._step()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine.

    name: of its golden output. seconds: between the readings. files: of a reading. counters: what
    stands in for perf_event_open(2). spaces: by mount point f_frsize, f_blocks, f_bfree, f_bavail,
    f_files, f_ffree of statvfs(3). settings: of the agent. programs: what programs print at a
    reading, by name. smart_logs: what NVMe controllers answer at a reading, by name.
    """

    name: str
    hostname: str
    seconds: int
    files: Callable[[Reading], Files]
    counters: Callable[[], StandIn]
    spaces: dict[str, tuple[int, int, int, int, int, int]]
    page_size: int = 4096
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    programs: Callable[[Reading], Mapping[str, str]] = lambda _: {}
    smart_logs: Callable[[Reading], Mapping[str, bytes]] = lambda _: {}


class MachineNode(Node):
    """A machine at its first reading, below an empty directory; sleep brings it to the second."""

    def __init__(self, machine: Machine, root: Path) -> None:
        super().__init__(
            root=str(root),
            hostname=machine.hostname,
            cluster="fox",
            clock=SteppingClock(self._go_on),
        )
        self.clock_ticks, self.page_size = 100, machine.page_size
        self.stand_in = machine.counters()
        self._machine = machine
        self._reading = Reading(is_second=False)
        self._show(self._reading)

    def space(self, path: str) -> os.statvfs_result:
        unit, blocks, free, available, inodes, free_inodes = self._machine.spaces[f"/{path}"]
        return os.statvfs_result(
            (unit, unit, blocks, free, available, inodes, free_inodes, free_inodes, 0, 255)
        )

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        """Return what the machine's program prints; longer beginnings of a command first."""
        programs = self._machine.programs(self._reading)
        for words in range(len(command), 0, -1):
            output = programs.get(" ".join(command[:words]))
            if output is not None:
                return output.encode()
        raise NotHereError(f"{command[0]}: no such program")

    def smart_log(self, _node: Node, controller: str, _seconds: float) -> bytes:
        """Return what a controller of the machine answers."""
        return self._machine.smart_logs(self._reading)[controller]

    def agent(self, **settings: object) -> MetricsAgent:
        """Make the agent. settings: more than those of the machine."""
        stand_in = self.stand_in

        class Perf(PerfReader):
            """Counts what the machine does, not what this one does."""

            def __init__(self, settings: ReaderSettings | None = None) -> None:
                super().__init__(settings, stand_in)

        smart_log = self.smart_log

        class Nvme(NvmeReader):
            """Reads the logs of the machine's drives, not of this one's."""

            def __init__(self, settings: NvmeSettings | None = None) -> None:
                super().__init__(settings, smart_log)

        with patch.dict(READERS, {Perf.name: Perf, Nvme.name: Nvme}):
            agent = MetricsAgent(
                convert(
                    {"readers": HARDWARE, **self._machine.settings, **settings},
                    MetricsSettings,
                    "agents.metrics",
                    place="test",
                ),
                frozenset({"line"}),
            )
        # So that readers wait for what runs in the background.
        agent.is_only_sample = True
        return agent

    def _go_on(self) -> float:
        self.stand_in.let_pass(self._machine.seconds)
        self._reading = Reading(is_second=True)
        self._show(self._reading)
        return self._machine.seconds

    def _show(self, reading: Reading) -> None:
        for name, content in self._machine.files(reading).items():
            path = Path(self.root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def lines(machine: Machine, root: Path, **settings: object) -> list[str]:
    """Return the lines of the machine's first tick. settings: more than those of the machine."""
    node = MachineNode(machine, root)
    agent = node.agent(**settings)
    node.clock.sleep(agent.prepare(node))
    messages = list(encode(agent.sample(node), "line", node))
    agent.close()
    assert not node.stand_in.descriptors
    return b"".join(message.body for message in messages).decode().splitlines()
