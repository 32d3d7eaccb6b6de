"""The messages of the FAST protocol.

Both readings are held by one structure: that of the specification, and that of the programs which
speak it. `decoding` and `encoding` know where they differ.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MachineEvent = Literal[
    "vm started", "vm stopped", "vm suspended", "vm resumed", "vm migrated", "vm repinned"
]
"""What the migration framework has done."""

VcpuMap = tuple[tuple[int, ...], ...]
"""The CPUs of the host that each virtual CPU may run on."""


class FastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. id: names a request, and comes back with its answer; may be empty."""

    id: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """A payload that is none of the messages.

    task: what it asked for, if that is clear; id: of the request, if it had one.
    """

    reason: str
    task: str = ""
    id: str = ""


class InitAgent(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: report these KPIs every `repeat` seconds; all if none is named."""

    categories: tuple[str, ...]
    repeat: int


class StopMonitoring(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: stop monitoring a process of a job. process_id: 0 for all of the job."""

    job_id: str
    process_id: int = 0


class BandwidthRequest(FastMessage, frozen=True, kw_only=True):
    """Scheduler to agent: measure the memory bandwidth that is left on these cores."""

    cores: tuple[int, ...]


class AgentInit(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: this node is up and wants a configuration."""

    source: str


class AgentQuit(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler, also as last will: the agent of this node is gone."""

    source: str


class ConfigurationAnswer(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: whether a configuration is accepted; details: why it is not."""

    source: str
    is_accepted: bool
    details: str = ""


class TaskAnswer(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: the default result status of any other task."""

    source: str
    task: str
    is_success: bool
    details: str = ""


class KpiReport(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: KPIs of the node and, if `job_id` or `process_id`, of an application."""

    source: str
    values: dict[str, float | str]
    job_id: str = ""
    process_id: int = 0
    vm_name: str = ""


class BandwidthResponse(FastMessage, frozen=True, kw_only=True):
    """Agent to scheduler: the bandwidth left, 0.33 to 1; None with `details` if none was measured.

    is_valid: the probe had its cores for itself. cpu_share: the least share of time that a thread
    of the probe ran. bandwidth: B/s of all cores together.
    """

    cores: tuple[int, ...]
    value: float | None = None
    is_valid: bool = True
    cpu_share: float = 0.0
    bandwidth: float = 0.0
    details: str = ""


class MachineConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine to start: by its name, or by the XML that defines it. memory: KiB."""

    name: str = ""
    xml: str = ""
    memory: int | None = None
    vcpus: int | None = None
    pci_ids: tuple[tuple[int, int], ...] = ()
    is_transient: bool = False


class MachineOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in a task that stops, suspends or resumes several."""

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
    """A machine that is migrated. hook_processes: those whose pscom connections are suspended."""

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
    """Scheduler to migration framework: assign the virtual CPUs to other CPUs."""

    name: str
    vcpu_map: VcpuMap


class MachineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one machine. process_id: of the hypervisor, 0 if it is not known."""

    name: str
    is_success: bool
    process_id: int = 0
    details: str = ""


class MachineResult(FastMessage, frozen=True, kw_only=True):
    """Migration framework to scheduler and agent: what was done. durations: seconds by phase."""

    event: MachineEvent
    machines: tuple[MachineOutcome, ...]
    scheduler: str = ""
    durations: dict[str, float] = {}


class ConnectionRequest(FastMessage, frozen=True, kw_only=True):
    """Migration framework to pscom: suspend the connections of a process, or resume them."""

    task: Literal["suspend", "resume"]


class ApplicationStatus(FastMessage, frozen=True, kw_only=True):
    """Application to all: whether it may be migrated, and which KPIs it will send."""

    job: str
    is_migratable: bool = True
    supported: tuple[str, ...] = ()


class ApplicationKpis(FastMessage, frozen=True, kw_only=True):
    """Application to all: its own KPIs; those that are no numbers stay text."""

    job: str
    values: dict[str, float | str]
