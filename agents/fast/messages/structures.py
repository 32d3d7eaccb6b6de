"""Messages of the FAST protocol.

One structure covers both forms of a message: that of the specification, and that of existing
programs. `decoding` and `encoding` handle the differences.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MachineEvent = Literal[
    "vm started", "vm stopped", "vm suspended", "vm resumed", "vm migrated", "vm repinned"
]
"""Events of the migration framework."""

VcpuMap = tuple[tuple[int, ...], ...]
"""The allowed host CPUs of each virtual CPU."""

KpiScope = Literal["node", "application"]
APPLICATION_MEMORY = "Application/VM memory usage"
APPLICATION_CPU = "Application/VM Cpu usage"
NODE_MEMORY = "Node memory usage"
NODE_MEMORY_BANDWIDTH = "Node memory bandwidth"
NODE_CPU = "Node Cpu usage"
NODE_INTERCONNECT = "Node Network Interconnect bandwidth"
COMMUNICATION = "communication intensity (network)"
RUNTIME = "expected runtime"

KPIS: dict[str, KpiScope] = {
    APPLICATION_MEMORY: "application",
    APPLICATION_CPU: "application",
    NODE_MEMORY: "node",
    NODE_MEMORY_BANDWIDTH: "node",
    NODE_CPU: "node",
    NODE_INTERCONNECT: "node",
    COMMUNICATION: "node",
    RUNTIME: "application",
}
"""All KPIs, in the order of the specification."""

_KNOWN = {" ".join(name.casefold().split()): name for name in KPIS} | {
    "vm memory usage": APPLICATION_MEMORY,
    "application memory usage": APPLICATION_MEMORY,
    "vm cpu usage": APPLICATION_CPU,
    "application cpu usage": APPLICATION_CPU,
    "node network bandwidth": NODE_INTERCONNECT,
    "node interconnect bandwidth": NODE_INTERCONNECT,
    "communication intensity": COMMUNICATION,
}


class FastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. id: id of a request, repeated in its answer; may be empty."""

    id: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """A payload that is not a valid message.

    task: the requested task, if known. id: id of the request, if it had one.
    """

    reason: str
    task: str = ""
    id: str = ""


class InitAgent(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: report these KPIs every `repeat` seconds; all if none is named."""

    categories: tuple[str, ...]
    repeat: int


class StopMonitoring(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: stop monitoring a process of a job. process_id: 0 for the whole job."""

    job_id: str
    process_id: int = 0


class BandwidthRequest(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: measure the available memory bandwidth of these cores."""

    cores: tuple[int, ...]


class AgentInit(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: this node is up and needs a configuration."""

    source: str


class AgentQuit(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler, also as last will: the agent of this node has stopped."""

    source: str


class ConfigurationAnswer(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: a configuration is accepted or denied. details: the reason."""

    source: str
    is_accepted: bool
    details: str = ""


class TaskAnswer(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: result of any other task."""

    source: str
    task: str
    is_success: bool
    details: str = ""


class KpiReport(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: KPIs of the node, and of an application if `job_id` or `process_id`."""

    source: str
    values: dict[str, float | str]
    job_id: str = ""
    process_id: int = 0
    vm_name: str = ""


class BandwidthResponse(FastMessage, frozen=True, kw_only=True):
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


class MachineConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine to start, by name or by XML definition. memory: KiB."""

    name: str = ""
    xml: str = ""
    memory: int | None = None
    vcpus: int | None = None
    pci_ids: tuple[tuple[int, int], ...] = ()
    is_transient: bool = False


class MachineOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in a task that stops, suspends or resumes machines."""

    name: str
    is_forced: bool = False
    is_undefined: bool = False


class StartMachines(FastMessage, frozen=True, kw_only=True):
    """Scheduler to migration framework: start virtual machines."""

    host: str = ""
    machines: tuple[MachineConfiguration, ...]


class OrderMachines(FastMessage, frozen=True, kw_only=True):
    """Scheduler to migration framework: stop, suspend or resume virtual machines."""

    task: Literal["stop vm", "suspend vm", "resume vm"]
    host: str = ""
    machines: tuple[MachineOrder, ...]


class MigratingMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to migrate. hook_processes: processes with suspended pscom connections."""

    name: str
    hook_processes: int | None = None
    vcpu_map: VcpuMap = ()


class MigrateMachine(FastMessage, frozen=True, kw_only=True):
    """Scheduler to migration framework: migrate a machine, or exchange two."""

    host: str = ""
    machine: MigratingMachine
    destination: str
    swap_with: MigratingMachine | None = None
    migration_type: Literal["live", "warm", "offline"] = "live"
    uses_rdma: bool = False
    retries: int | None = None
    measures_time: bool = False


class RepinMachine(FastMessage, frozen=True, kw_only=True):
    """Scheduler to migration framework: pin the virtual CPUs to other CPUs."""

    name: str
    vcpu_map: VcpuMap


class MachineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one machine. process_id: process of the hypervisor, 0 if unknown."""

    name: str
    is_success: bool
    process_id: int = 0
    details: str = ""


class MachineResult(FastMessage, frozen=True, kw_only=True):
    """Migration framework to scheduler and agent: an event. durations: seconds by phase."""

    event: MachineEvent
    machines: tuple[MachineOutcome, ...]
    scheduler: str = ""
    durations: dict[str, float] = {}


class ConnectionRequest(FastMessage, frozen=True, kw_only=True):
    """Migration framework to pscom: suspend the connections of a process, or resume them."""

    task: Literal["suspend", "resume"]


class ApplicationStatus(FastMessage, frozen=True, kw_only=True):
    """Application to all: whether it may be migrated, and the KPIs that it will send."""

    job: str
    is_migratable: bool = True
    supported: tuple[str, ...] = ()


class ApplicationKpis(FastMessage, frozen=True, kw_only=True):
    """Application to all: its KPIs; values that are no numbers stay text."""

    job: str
    values: dict[str, float | str]


def find_kpi(name: str) -> str | None:
    """Return the KPI of a name, ignoring case and spaces; None if unknown."""
    return _KNOWN.get(" ".join(name.casefold().split()))
