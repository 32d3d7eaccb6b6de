"""A small reference scheduler: it reads the KPIs of nodes, and moves one machine by a stated rule.

The load of a node is its memory bandwidth, if all nodes report it, else the CPU usage of its
machines. If the load of the most loaded node exceeds a limit and it has several machines, the
machine is moved whose move to the least loaded node leaves the smallest maximum of both loads. The
share of a machine in the bandwidth of its node is that in the CPU usage of the node's machines.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.decoding import decode
from ccagent.errors import ConfigurationError, ProgramError
from ccagent.net.mqtt import MqttConnection
from ccagent.net.mqtt_broker import REFUSED, MqttLostError, MqttOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.agents.fast.settings import FastSettings
    from ccagent.net.mqtt_broker import ReceivedMessage

_CATEGORIES = (
    fast.NODE_MEMORY_BANDWIDTH, fast.NODE_CPU, fast.APPLICATION_CPU, fast.APPLICATION_MEMORY,
)  # fmt: skip
_TURN = 0.5
_TASK_LIMIT = 700.0
_LEAST_GAIN = 0.05
"""Smallest relative decrease of the load of the source that is worth a migration."""


class NodeLoad(NamedTuple):
    """The last KPIs of a node. machines: CPU usage by machine, in % of the node."""

    bandwidth: float | None
    machines: Mapping[str, float]


class MoveProposal(NamedTuple):
    """A machine to move, and the loads of both nodes before and after, by the rule."""

    machine: str
    source: str
    target: str
    before: tuple[float, float]
    after: tuple[float, float]
    unit: str


def propose_move(nodes: Mapping[str, NodeLoad], limit: float) -> MoveProposal | None:
    """Return the move of the rule; None if no node exceeds the limit or no move helps."""
    if len(nodes) < 2:
        return None
    by_bandwidth = all(each.bandwidth is not None for each in nodes.values())
    loads = {
        name: each.bandwidth or 0.0 if by_bandwidth else sum(each.machines.values())
        for name, each in nodes.items()
    }
    source = max(loads, key=lambda name: loads[name])
    target = min(loads, key=lambda name: loads[name])
    machines = nodes[source].machines
    whole = sum(machines.values())
    if loads[source] <= limit or len(machines) < 2 or whole <= 0:
        return None
    shares = {name: loads[source] * usage / whole for name, usage in sorted(machines.items())}

    def highest(name: str) -> float:
        return max(loads[source] - shares[name], loads[target] + shares[name])

    machine = min(shares, key=highest)
    if highest(machine) > loads[source] * (1 - _LEAST_GAIN):
        return None
    share = shares[machine]
    before = (loads[source], loads[target])
    after = (loads[source] - share, loads[target] + share)
    return MoveProposal(machine, source, target, before, after, "B/s" if by_bandwidth else "% CPU")


class ReferenceScheduler:
    """A scheduler for some nodes. It configures their agents, and reads what they send."""

    def __init__(self, settings: FastSettings, nodes: Sequence[str]) -> None:
        """Connect to the broker. Raise ConfigurationError or MqttLostError."""
        if not settings.url:
            raise ConfigurationError("agents.fast.url: missing; the scheduler needs the broker")
        self._root = settings.topic
        self._nodes = nodes
        self._reports: dict[str, dict[str, fast.KpiReport]] = {}
        self._results: dict[str, fast.MachineResult] = {}
        self._sent = 0
        name = f"ccagent-schedule-{os.getpid()}"
        options = MqttOptions(settings.broker(), name, None, is_passing=True)
        self._connection = MqttConnection(options, on_message=self._on_message)
        self._connection.subscribe(
            f"{self._root}/{topic}" for node in nodes
            for topic in (f"agent/{node}/status", f"migfra/{node}/result")
        )  # fmt: skip

    def close(self) -> None:
        """Log off from the broker."""
        self._connection.close()

    def read(self, seconds: int, repeat: int) -> dict[str, NodeLoad]:
        """Configure the agents, read for some seconds, and return the loads by node.

        Raise ProgramError if a node does not report.
        """
        self._reports = {}
        request = fast.InitAgent(categories=_CATEGORIES, repeat=repeat)
        for node in self._nodes:
            self._publish(f"agent/{node}/task/init_agent", request)
        self._serve(time.monotonic() + seconds, lambda: False)
        if missing := [node for node in self._nodes if node not in self._reports]:
            raise ProgramError(f"no KPIs within {seconds} s from: {', '.join(missing)}")
        return {node: _load(self._reports[node]) for node in self._nodes}

    def move(self, proposal: MoveProposal) -> fast.MachineOutcome:
        """Have a machine migrated live, and return the outcome. Raise ProgramError without one."""
        name = f"schedule-{os.getpid()}-{time.time_ns()}"
        task = fast.MigrateMachine(
            id=name,
            machine=fast.MigratingMachine(name=proposal.machine),
            destination=proposal.target,
            migration_type="live",
            measures_time=True,
        )
        self._publish(f"migfra/{proposal.source}/task", task)
        self._serve(time.monotonic() + _TASK_LIMIT, lambda: name in self._results)
        if name not in self._results or not self._results[name].machines:
            raise ProgramError(f"no result of the migration from {proposal.source}")
        return self._results[name].machines[0]

    def _publish(self, topic: str, message: fast.FastMessage) -> None:
        self._sent += 1
        self._connection.publish(self._sent, f"{self._root}/{topic}", message.encode())
        self._connection.settle()
        if self._connection.results.pop(self._sent, 0) >= REFUSED:
            raise ProgramError(f"the broker refuses to publish to {self._root}/{topic}")

    def _serve(self, deadline: float, is_done: Callable[[], bool]) -> None:
        connection = self._connection
        while not is_done() and (rest := deadline - time.monotonic()) > 0:
            connection.turn(connection.poll(min(rest, _TURN)))
            if connection.ended:
                raise MqttLostError(connection.ended)

    def _on_message(self, received: ReceivedMessage) -> None:
        self._connection.confirm(received)
        _, room, node, kind = [*received.topic.removeprefix(self._root).split("/"), "", "", ""][:4]
        if (room, kind) == ("migfra", "result"):
            result = decode("machine result", received.payload)
            if isinstance(result, fast.MachineResult) and result.id:
                self._results[result.id] = result
        elif (room, kind) == ("agent", "status"):
            report = decode("agent status", received.payload)
            if isinstance(report, fast.KpiReport):
                self._reports.setdefault(node, {})[report.vm_name] = report


def _load(reports: Mapping[str, fast.KpiReport]) -> NodeLoad:
    bandwidth: float | None = None
    machines: dict[str, float] = {}
    for name, report in reports.items():
        value = report.values.get(fast.NODE_MEMORY_BANDWIDTH)
        bandwidth = value if isinstance(value, float) else bandwidth
        usage = report.values.get(fast.APPLICATION_CPU)
        if name and isinstance(usage, float):
            machines[name] = usage
    return NodeLoad(bandwidth, machines)


def describe_loads(nodes: Mapping[str, NodeLoad]) -> Iterator[str]:
    """Yield a line for each node, and for each of its machines."""
    for name, load in nodes.items():
        bandwidth = "not counted" if load.bandwidth is None else f"{load.bandwidth / 1e9:.2f} GB/s"
        yield f"node {name}: memory bandwidth {bandwidth}"
        for machine, usage in sorted(load.machines.items()):
            yield f"  machine {machine}: CPU usage {usage:.1f} %"


def describe_proposal(proposal: MoveProposal | None) -> str:
    """Return a proposal as a sentence."""
    if proposal is None:
        return "no proposal: no node exceeds the limit, or no move helps"
    before, after = proposal.before, proposal.after
    return (
        f"move {proposal.machine} from {proposal.source} to {proposal.target}: load"
        f" {before[0]:.1f} and {before[1]:.1f} {proposal.unit} become {after[0]:.1f} and"
        f" {after[1]:.1f}"
    )
