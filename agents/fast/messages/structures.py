"""Messages of the FAST protocol, and the names of its KPIs.

One structure covers both forms of a message: that of the specification, and that of existing
programs. `decoding` reads both, and `encode` of those that ccagent sends writes a form that both
read.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

APPLICATION_MEMORY = "Application/VM memory usage"
APPLICATION_CPU = "Application/VM Cpu usage"
NODE_MEMORY = "Node memory usage"
NODE_MEMORY_BANDWIDTH = "Node memory bandwidth"
NODE_CPU = "Node Cpu usage"
NODE_INTERCONNECT = "Node Network Interconnect bandwidth"
COMMUNICATION = "communication intensity (network)"
COMPUTE = "compute intensity"
INPUT_OUTPUT = "IO intensity"
ENERGY = "energy consumption"
RUNTIME = "expected runtime"

KPIS = {
    APPLICATION_MEMORY: "fast_application_mem",
    APPLICATION_CPU: "fast_application_cpu",
    NODE_MEMORY: "fast_node_mem",
    NODE_MEMORY_BANDWIDTH: "fast_node_mem_bw",
    NODE_CPU: "fast_node_cpu",
    NODE_INTERCONNECT: "fast_node_interconnect",
    COMMUNICATION: "fast_communication_intensity",
    COMPUTE: "fast_compute_intensity",
    INPUT_OUTPUT: "fast_io_intensity",
    ENERGY: "fast_energy_consumption",
    RUNTIME: "fast_expected_runtime",
}
"""Metric names by KPI, in the order of the specification.

`COMPUTE` to `ENERGY` are those of schedulers.
"""

_KNOWN = {" ".join(name.casefold().split()): name for name in KPIS} | {
    "vm memory usage": APPLICATION_MEMORY,
    "application memory usage": APPLICATION_MEMORY,
    "vm cpu usage": APPLICATION_CPU,
    "application cpu usage": APPLICATION_CPU,
    "node network bandwidth": NODE_INTERCONNECT,
    "node interconnect bandwidth": NODE_INTERCONNECT,
    "communication intensity": COMMUNICATION,
}

MachineEvent = Literal[
    "vm started",
    "vm stopped",
    "vm suspended",
    "vm resumed",
    "vm migrated",
    "vm repinned",
    "node evacuated",
    "quit",
    "unknown",
]
"""Events of the migration framework; `unknown` is its answer to an unreadable task."""

TaskStatus = Literal["accepted", "denied", "success", "error"]
MigrationType = Literal["live", "warm", "offline"]
EvacuationMode = Literal["auto", "compact", "scatter"]
HookProcesses = int | Literal["auto"] | None
"""Number of processes whose connections pscom suspends; `auto`: the framework counts them."""

VcpuMap = tuple[tuple[int, ...], ...]
"""The allowed host CPUs of each virtual CPU."""


def find_kpi(name: str) -> str | None:
    """Return the KPI of a name, ignoring case and spaces; None if unknown."""
    return _KNOWN.get(" ".join(name.casefold().split()))


class Refusal(msgspec.Struct, frozen=True):
    """A payload that is not a valid message.

    task: the requested task, if known. id: id of the request, if it had one.
    """

    reason: str
    task: str = ""
    id: str = ""


class FastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. id: id of a request, repeated in its answer; may be empty."""

    id: str = ""


class SentMessage(FastMessage, frozen=True, kw_only=True):
    """Base of the messages that ccagent sends."""

    def encode(self) -> bytes:
        """Return the message in YAML, framed between `---`."""
        from ccagent.agents.fast.messages.documents import write_document

        document = self._document()
        if self.id:
            document["id"] = self.id
        return write_document(document)

    def _document(self) -> dict[str, Any]:
        """Return the message as maps, lists and scalars, without its id."""
        raise NotImplementedError


class InitAgent(SentMessage, frozen=True, kw_only=True):
    """Scheduler to agent: report these KPIs every `repeat` seconds; all if none is named.

    ignored: named categories that are no KPIs.
    """

    categories: tuple[str, ...]
    repeat: int
    ignored: tuple[str, ...] = ()

    def _document(self) -> dict[str, Any]:
        kpi = {"categories": [{name: True} for name in self.categories], "repeat": self.repeat}
        return {"task": "init agent", "KPI": kpi}


class StopMonitoring(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: stop monitoring a process of a job. process_id: 0 for the whole job."""

    job_id: str
    process_id: int = 0


class BandwidthRequest(SentMessage, frozen=True, kw_only=True):
    """Scheduler to agent: measure the available memory bandwidth of these cores."""

    cores: tuple[int, ...]

    def _document(self) -> dict[str, Any]:
        return {"task": "mmbwmon request", "cores": [*self.cores]}


class AgentPresence(SentMessage, frozen=True, kw_only=True):
    """Agent to scheduler.

    init: this node is up and needs a configuration. quit, also as last will: the agent has stopped.
    """

    task: Literal["init", "quit"]
    source: str

    def _document(self) -> dict[str, Any]:
        # The specification and the scheduler need `source`, fast-lib needs `hostname`.
        return {"task": self.task, "source": self.source, "hostname": self.source}


class TaskAnswer(SentMessage, frozen=True, kw_only=True):
    """Agent to scheduler: result of a task. An init agent is answered as `configuration`."""

    source: str
    task: str
    status: TaskStatus
    details: str = ""

    def _document(self) -> dict[str, Any]:
        document = {"task": self.task, "source": self.source, "status": self.status}
        return document | _given(details=self.details)


class KpiReport(SentMessage, frozen=True, kw_only=True):
    """Agent to scheduler: KPIs of the node, and of an application if `job_id` or `process_id`."""

    source: str
    values: dict[str, float | str]
    job_id: str = ""
    process_id: int = 0
    vm_name: str = ""

    def _document(self) -> dict[str, Any]:
        # No key `result`: fast-lib's scheduler would take it for another message.
        job = _given(job_id=self.job_id, process_id=self.process_id or None, vm_name=self.vm_name)
        values = [{name: _plain(value)} for name, value in self.values.items()]
        return _given(task="KPI", source=self.source, job_description=job) | {"KPIS": values}


class BandwidthResponse(SentMessage, frozen=True, kw_only=True):
    """Agent to scheduler: the available bandwidth, 0.33 to 1; None with `details` if unmeasured.

    is_valid: the probe had its cores exclusively. cpu_share: minimum CPU share of a thread of the
    probe. bandwidth: B/s of all cores together.
    """

    cores: tuple[int, ...]
    value: float | None = None
    is_valid: bool = True
    cpu_share: float = 0.0
    bandwidth: float = 0.0
    details: str = ""
    stand_in: float | None = None
    """The number for peers that can't read a response without one, if `value` is None."""

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"task": "mmbwmon response", "cores": [*self.cores]}
        if self.value is None:
            if self.stand_in is not None:
                document |= {"result": self.stand_in, "response": self.stand_in, "valid": False}
            document["status"] = "error"
        else:
            # The specification has `response`, fast-lib has `result`.
            document |= {"result": self.value, "response": self.value}
            document |= {"status": _status(self.is_valid), "valid": self.is_valid}
            document |= {"cpu-share": self.cpu_share, "bandwidth": self.bandwidth}
        return document | _given(details=self.details)


class MachineConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine to start, by name or by XML definition. memory: KiB.

    template: name of a file of the node instead of a definition. probes: wait until it answers.
    """

    name: str = ""
    xml: str = ""
    memory: int | None = None
    vcpus: int | None = None
    pci_ids: tuple[tuple[int, int], ...] = ()
    is_transient: bool = False
    measures_time: bool = False
    template: str = ""
    probes: bool = True


class MachineOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in a task that stops, suspends or resumes machines."""

    name: str
    is_forced: bool = False
    is_undefined: bool = False
    measures_time: bool = False


class MachineTask(FastMessage, frozen=True, kw_only=True):
    """A task of the migration framework. Without a structure of its own: `quit`, which is refused.

    task: its name in messages and in policies. is_concurrent: the next task need not wait for its
    end. refused: fields that no node accepts, such as `driver`.
    """

    task: str
    is_concurrent: bool = True
    refused: tuple[str, ...] = ()


class StartMachines(MachineTask, frozen=True, kw_only=True):
    """Scheduler to migration framework: start virtual machines."""

    task: str = "start vm"
    machines: tuple[MachineConfiguration, ...]


class OrderMachines(MachineTask, frozen=True, kw_only=True):
    """Scheduler to migration framework: stop, suspend or resume virtual machines."""

    machines: tuple[MachineOrder, ...]


class MigratingMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to migrate. hook_processes: processes with suspended pscom connections."""

    name: str
    hook_processes: HookProcesses = None
    vcpu_map: VcpuMap = ()


class MigrateMachine(MachineTask, frozen=True, kw_only=True):
    """Scheduler to migration framework: migrate a machine, or exchange two."""

    task: str = "migrate vm"
    machine: MigratingMachine
    destination: str
    swap_with: MigratingMachine | None = None
    migration_type: MigrationType = "warm"
    uses_rdma: bool = False
    retries: int | None = None
    measures_time: bool = False


class RepinMachine(MachineTask, frozen=True, kw_only=True):
    """Scheduler to migration framework: pin the virtual CPUs to other CPUs."""

    task: str = "repin vm"
    name: str
    vcpu_map: VcpuMap
    measures_time: bool = False


class EvacuateNode(MachineTask, frozen=True, kw_only=True):
    """Scheduler to migration framework: migrate all machines of the node.

    is_overbooked: more machines than CPUs may run on a destination.
    """

    task: str = "evacuate node"
    destinations: tuple[str, ...]
    mode: EvacuationMode = "auto"
    is_overbooked: bool = True
    migration_type: MigrationType = "warm"
    uses_rdma: bool = False
    retries: int | None = None
    hook_processes: HookProcesses = None
    measures_time: bool = False


class MachineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one machine.

    process_id: process of the hypervisor, 0 if unknown. host: where the machine runs. state: its
    state there, as libvirt names it. durations: seconds by phase.
    """

    name: str
    is_success: bool
    process_id: int = 0
    details: str = ""
    host: str = ""
    state: str = ""
    durations: dict[str, float] = {}

    def document(self) -> dict[str, Any]:
        """Return the part of a message, with the times as existing programs write them."""
        document = {"vm-name": self.name, "status": _status(self.is_success)}
        return document | _given(
            details=self.details,
            process_id=self.process_id or None,
            host=self.host,
            state=self.state,
            time_measurement={tag: f"{value:.6f}" for tag, value in self.durations.items()},
        )


class MachineResult(SentMessage, frozen=True, kw_only=True):
    """Migration framework to scheduler and agent: an event."""

    event: MachineEvent
    machines: tuple[MachineOutcome, ...]
    scheduler: str = ""

    def _document(self) -> dict[str, Any]:
        document = _given(scheduler=self.scheduler, result=self.event)
        machines = [machine.document() for machine in self.machines]
        # The specification's `vm repinned` has no list, that of existing programs has one.
        if self.event in {"vm migrated", "vm repinned"} and len(machines) == 1:
            document |= machines[0]
        if self.event != "vm migrated":
            document["list"] = machines
        return document


class ApplicationStatus(FastMessage, frozen=True, kw_only=True):
    """Application to all: whether it may be migrated, and the KPIs that it will send."""

    job: str
    is_migratable: bool = True
    supported: tuple[str, ...] = ()


class ApplicationKpis(FastMessage, frozen=True, kw_only=True):
    """Application to all: its KPIs; values that are no numbers stay text."""

    job: str
    values: dict[str, float | str]


def _given(**values: object) -> dict[str, Any]:
    """Return the values that are not None or empty, by key with `-` in place of `_`."""
    return {
        key.replace("_", "-"): value
        for key, value in values.items()
        if value is not None and value not in ("", [], {})
    }


def _status(is_success: object) -> str:
    return "success" if is_success else "error"


def _plain(value: float | str) -> float | str:
    """Return a whole number as int: peers in C++ do not read `5.0` as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
