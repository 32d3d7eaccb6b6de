"""A small reference scheduler: it reads what nodes send, and moves machines by a stated rule.

The load of a node is the first of these that all nodes have: its memory bandwidth; the bandwidth
that mmbwmon found missing on its worst cores, in % (0 for a response of 1, 100 for 0.33, the
minimum); the CPU usage of its machines. The share of a machine in it is that in the bandwidth that
the applications of all machines of the node report, else that in their CPU usage.

While the load of the most loaded node exceeds its limit and it has several machines, the machine is
moved that leaves the smallest maximum of both sides: to cores of the same node on which mmbwmon
found the bandwidth free, else to the least loaded node. A machine is moved once at most, and not to
another node if its application forbids migration.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.fast.bandwidth import LEAST_VALUE
from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.decoding import decode
from ccagent.agents.fast.messages.documents import write_document
from ccagent.errors import ConfigurationError, ProgramError
from ccagent.log import logger
from ccagent.net.mqtt import MqttConnection
from ccagent.net.mqtt_broker import REFUSED, MqttLostError, MqttOptions
from ccagent.net.signatures import write_signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.agents.fast.settings import FastSettings
    from ccagent.net.mqtt_broker import ReceivedMessage

_CATEGORIES = (
    fast.NODE_MEMORY_BANDWIDTH, fast.NODE_CPU, fast.APPLICATION_CPU, fast.APPLICATION_MEMORY,
)  # fmt: skip
_APPLICATION_BANDWIDTH = "memory bandwidth"
_TURN = 0.5
_TASK_LIMIT = 700.0
_FREE = 0.9
"""Smallest response of mmbwmon for cores that another machine may use."""
_LEAST_GAIN = 0.05
"""Smallest relative decrease of the load of the source that is worth a move."""


class ApplicationReading(NamedTuple):
    """The last messages of an application."""

    values: Mapping[str, float | str] = {}
    is_migratable: bool = True

    @property
    def bandwidth(self) -> float | None:
        """Memory bandwidth in the unit of the application; None if it does not report any."""
        for name, value in self.values.items():
            if " ".join(name.casefold().split()) == _APPLICATION_BANDWIDTH:
                return value if isinstance(value, float) else None
        return None


class MachineReading(NamedTuple):
    """The CPU usage of a machine in % of the node, and its application."""

    usage: float
    application: ApplicationReading = ApplicationReading()


class NodeReading(NamedTuple):
    """The last messages of a node.

    bandwidth: B/s. measured: responses of mmbwmon by cores; None for cores that are in use.
    """

    machines: Mapping[str, MachineReading]
    bandwidth: float | None = None
    measured: Mapping[tuple[int, ...], float | None] = {}


class MoveProposal(NamedTuple):
    """A machine to move, and the loads of both sides before and after, by the rule.

    cores: to pin it to on the same node; empty for a migration.
    """

    machine: str
    source: str
    target: str
    cores: tuple[int, ...]
    before: tuple[float, float]
    after: tuple[float, float]
    unit: str


class MoveRule:
    """The rule, applied to a model of the nodes that follows its own proposals."""

    def __init__(
        self, nodes: Mapping[str, NodeReading], limit: float, bandwidth_limit: float
    ) -> None:
        """Prepare. limit: %, of CPU usage or missing bandwidth. bandwidth_limit: GB/s."""
        self._nodes = nodes
        self._unit, self._limit = "% CPU", limit
        self._loads = {
            name: sum(machine.usage for machine in node.machines.values())
            for name, node in nodes.items()
        }
        missing = {name: _missing(node) for name, node in nodes.items()}
        known = {name: each for name, each in missing.items() if each is not None}
        counted = {
            name: node.bandwidth / 1e9 for name, node in nodes.items() if node.bandwidth is not None
        }
        if len(counted) == len(nodes):
            self._unit, self._limit, self._loads = "GB/s", bandwidth_limit, counted
        elif len(known) == len(nodes):
            self._unit, self._loads = "% of bandwidth missing", known
        self._shares = {name: _shares(node, self._loads[name]) for name, node in nodes.items()}
        self._free = {
            name: [cores for cores, value in node.measured.items() if cores and value is not None
                   and value >= _FREE]
            for name, node in nodes.items()
        }  # fmt: skip
        self._moved: set[str] = set()

    def proposals(self) -> Iterator[MoveProposal]:
        """Yield moves until no node exceeds the limit, or no move helps."""
        while (found := self._next()) is not None:
            yield found
            share = self._shares[found.source].pop(found.machine)
            self._moved.add(found.machine)
            self._loads[found.source] -= share
            if found.cores:
                self._free[found.source].remove(found.cores)
            else:
                self._loads[found.target] += share
                self._shares[found.target][found.machine] = share

    def _next(self) -> MoveProposal | None:
        if not self._loads:
            return None
        source = max(self._loads, key=lambda name: self._loads[name])
        load, shares = self._loads[source], self._shares[source]
        cores = self._free[source][0] if self._free[source] else ()
        target = source if cores else min(self._loads, key=lambda name: self._loads[name])
        base = 0.0 if cores else self._loads[target]
        machines = self._nodes[source].machines
        candidates = [
            name for name in sorted(shares.keys() & machines.keys() - self._moved)
            if cores or machines[name].application.is_migratable
        ]  # fmt: skip
        is_nowhere = target == source and not cores
        if load <= self._limit or len(shares) < 2 or not candidates or is_nowhere:
            return None

        def highest(name: str) -> float:
            return max(load - shares[name], base + shares[name])

        machine = min(candidates, key=highest)
        if highest(machine) > load * (1 - _LEAST_GAIN):
            return None
        after = (load - shares[machine], base + shares[machine])
        return MoveProposal(machine, source, target, cores, (load, base), after, self._unit)


def _missing(node: NodeReading) -> float | None:
    """Return the missing bandwidth on the worst measured cores, in %; None without a response."""
    values = [value for value in node.measured.values() if value is not None]
    return 100 * max(0.0, 1 - min(values)) / (1 - LEAST_VALUE) if values else None


def _shares(node: NodeReading, load: float) -> dict[str, float]:
    """Return the shares of machines in the load of their node."""
    bandwidths = [machine.application.bandwidth for machine in node.machines.values()]
    weights = {name: machine.usage for name, machine in node.machines.items()}
    if None not in bandwidths:
        weights = {name: each or 0.0 for name, each in zip(weights, bandwidths, strict=True)}
    whole = sum(weights.values())
    return {name: load * weight / whole for name, weight in weights.items()} if whole > 0 else {}


class ReferenceScheduler:
    """A scheduler for some nodes, or all. It configures their agents, and reads what they send."""

    def __init__(
        self,
        settings: FastSettings,
        nodes: Sequence[str],
        slots: Sequence[tuple[int, ...]],
        seed: str = "",
    ) -> None:
        """Connect to the broker. Raise ConfigurationError or MqttLostError.

        nodes: empty for all that send something. slots: cores to measure and to pin machines to.
        seed: of the nkey that signs tasks for machines.
        """
        if not settings.url:
            raise ConfigurationError("agents.fast.url: missing; the scheduler needs the broker")
        self._root = settings.topic
        self._nodes = nodes
        self._slots = slots
        self._seed = seed
        self._reports: dict[str, dict[str, fast.KpiReport]] = {}
        self._measured: dict[str, dict[tuple[int, ...], float | None]] = {}
        self._applications: dict[str, ApplicationReading] = {}
        self._results: dict[str, fast.MachineResult] = {}
        self._sent = 0
        name = f"ccagent-schedule-{os.getpid()}"
        options = MqttOptions(settings.broker(), name, None, is_passing=True)
        self._connection = MqttConnection(options, on_message=self._on_message)
        self._connection.subscribe([
            f"{self._root}/{topic}" for topic in ("application/+/status", "application/+/KPIs", *(
                topic for node in nodes or ["+"] for topic in
                (f"agent/{node}/status", f"agent/{node}/mmbwmon/response", f"migfra/{node}/result")
            ))
        ])  # fmt: skip

    def close(self) -> None:
        """Log off from the broker."""
        self._connection.close()

    def read(self, seconds: int, repeat: int) -> dict[str, NodeReading]:
        """Configure the agents, read for some seconds, and return what they sent, by node.

        Raise ProgramError if a node does not report.
        """
        self._reports, self._measured = {}, {}
        if not self._nodes:
            self._serve(time.monotonic() + seconds, lambda: False)
            self._nodes = sorted(self._reports)
        nodes = self._nodes
        request = fast.InitAgent(categories=_CATEGORIES, repeat=repeat).encode()
        for node in nodes:
            self._publish(f"agent/{node}/task/init_agent", request)
        for cores in self._slots or ((),):
            for node in nodes if cores else ():
                measurement = fast.BandwidthRequest(id=self._new_id(), cores=cores)
                self._publish(f"agent/{node}/mmbwmon/request", measurement.encode())
            deadline = time.monotonic() + seconds / max(1, len(self._slots))
            self._serve(deadline, lambda: False)
        for topic, reason in self._connection.refused_filters.items():
            logger.warning("the broker refuses to subscribe to %s: %s", topic, reason)
        missing = [node for node in nodes if not self._reports.get(node)]
        if missing or not nodes:
            names = ", ".join(missing) or "any node"
            raise ProgramError(f"no KPIs within {seconds} s from: {names}")
        return {node: self._reading(node) for node in nodes}

    def move(self, proposal: MoveProposal, vcpus: int) -> fast.MachineOutcome:
        """Have a machine pinned or migrated live, and return the outcome.

        vcpus: virtual CPUs to pin. Raise ProgramError without an outcome.
        """
        name = self._new_id()
        task: dict[str, object] = {"id": name, "vm-name": proposal.machine}
        if proposal.cores:
            task |= {"task": "repin vm", "vcpu-map": [[*proposal.cores] for _ in range(vcpus)]}
        else:
            parameter = {"migration-type": "live", "rdma-migration": False}
            task |= {"task": "migrate vm", "destination": proposal.target}
            task |= {"time-measurement": True, "parameter": parameter}
        topic = f"migfra/{proposal.source}/task"
        payload = write_document(task)
        if self._seed:
            payload = write_signed(self._seed, f"{self._root}/{topic}", payload, time.time())
        self._publish(topic, payload)
        self._serve(time.monotonic() + _TASK_LIMIT, lambda: name in self._results)
        if name not in self._results or not self._results[name].machines:
            raise ProgramError(f"no result of the task for {proposal.machine}")
        return self._results[name].machines[0]

    def _new_id(self) -> str:
        return f"schedule-{os.getpid()}-{time.time_ns()}"

    def _publish(self, topic: str, payload: bytes) -> None:
        self._sent += 1
        self._connection.publish(self._sent, f"{self._root}/{topic}", payload)
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
        match received.topic.removeprefix(f"{self._root}/").split("/"):
            case ["migfra", _, "result"]:
                result = decode("machine result", received.payload)
                if isinstance(result, fast.MachineResult) and result.id:
                    self._results[result.id] = result
            case ["agent", node, "status"]:
                report = decode("agent status", received.payload)
                reports = self._reports.setdefault(node, {})
                if isinstance(report, fast.KpiReport):
                    reports[report.vm_name] = report
            case ["agent", node, "mmbwmon", "response"]:
                response = decode("bandwidth response", received.payload)
                if isinstance(response, fast.BandwidthResponse):
                    value = response.value if response.is_valid else None
                    self._measured.setdefault(node, {})[response.cores] = value
            case ["application", job, "status" | "KPIs" as kind]:
                self._note_application(job, kind, received.payload)
            case _:
                pass

    def _note_application(self, job: str, kind: str, payload: bytes) -> None:
        known = self._applications.get(job, ApplicationReading())
        message = decode(
            "application status" if kind == "status" else "application kpis", payload, job
        )
        if isinstance(message, fast.ApplicationStatus):
            known = known._replace(is_migratable=message.is_migratable)
        elif isinstance(message, fast.ApplicationKpis):
            known = known._replace(values=message.values)
        self._applications[job] = known

    def _reading(self, node: str) -> NodeReading:
        bandwidth: float | None = None
        machines: dict[str, MachineReading] = {}
        for name, report in self._reports[node].items():
            value = report.values.get(fast.NODE_MEMORY_BANDWIDTH)
            bandwidth = value if isinstance(value, float) else bandwidth
            usage = report.values.get(fast.APPLICATION_CPU)
            if name and isinstance(usage, float):
                applications = map(self._applications.get, (report.job_id, name))
                application = next(filter(None, applications), ApplicationReading())
                machines[name] = MachineReading(usage, application)
        return NodeReading(machines, bandwidth, self._measured.get(node, {}))


def describe_nodes(nodes: Mapping[str, NodeReading]) -> Iterator[str]:
    """Yield a line for each node, and for each of its machines."""
    for name, node in nodes.items():
        bandwidth = "not counted" if node.bandwidth is None else f"{node.bandwidth / 1e9:.2f} GB/s"
        yield f"node {name}: memory bandwidth {bandwidth}"
        for cores, value in node.measured.items():
            response = "not measured" if value is None else f"{value:.2f}"
            yield f"  cores {_list(cores)}: mmbwmon {response}"
        for machine, reading in sorted(node.machines.items()):
            yield f"  machine {machine}: CPU usage {reading.usage:.1f} %"
            application = reading.application
            values = [f"{kpi} {value}" for kpi, value in application.values.items()]
            if not application.is_migratable:
                values.append("must not be migrated")
            if values:
                yield f"    application: {', '.join(values)}"


def describe_proposal(proposal: MoveProposal) -> str:
    """Return a proposal as a sentence."""
    place = f"from {proposal.source} to {proposal.target}"
    if proposal.cores:
        place = f"on {proposal.source} to the cores {_list(proposal.cores)}"
    before, after = proposal.before, proposal.after
    return (
        f"{'repin' if proposal.cores else 'move'} {proposal.machine} {place}: load"
        f" {before[0]:.1f} and {before[1]:.1f} {proposal.unit} become {after[0]:.1f} and"
        f" {after[1]:.1f}"
    )


def _list(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))
