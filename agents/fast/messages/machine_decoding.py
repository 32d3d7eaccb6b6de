"""Decoder of messages about virtual machines: tasks and results of the migration framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast, get_args

from ccagent.agents.fast.messages.fields import Fields, as_map, shown, to_uints, to_value
from ccagent.agents.fast.messages.structures import (
    FastMessage,
    MachineConfiguration,
    MachineEvent,
    MachineOrder,
    MachineOutcome,
    MachineResult,
    MigrateMachine,
    MigratingMachine,
    OrderMachines,
    RepinMachine,
    StartMachines,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import VcpuMap
    from ccagent.agents.fast.messages.yaml_documents import Document

_MOST_MACHINES = 1000
_MOST_CPUS = 4096
_MOST_PHASES = 100
_LONGEST_NAME = 256
"""Maximum length of machine names: they are kept on disk, and a peer can send many."""
_EVENTS = get_args(MachineEvent)
_ORDERS: dict[str, Literal["stop vm", "suspend vm", "resume vm"]] = {
    "stop vm": "stop vm",
    "suspend vm": "suspend vm",
    "resume vm": "resume vm",
}
_MIGRATIONS: dict[str, Literal["live", "warm", "offline"]] = {
    "live": "live",
    "warm": "warm",
    "offline": "offline",
}


def decode_machine_task(fields: Fields, task: str, name: str) -> FastMessage:
    """Decode a task for the migration framework. Raise UnparsableError if invalid."""
    host = fields.text("host", "")
    if task == "start vm":
        parts = fields.maps("vm-configurations", _MOST_MACHINES)
        return StartMachines(id=name, host=host, machines=tuple(map(_configuration, parts)))
    if task in _ORDERS:
        orders = tuple(
            MachineOrder(
                name=part.text("vm-name"),
                is_forced=part.flag("force", default=False),
                is_undefined=part.flag("undefine", default=False),
            )
            for part in fields.maps("list", _MOST_MACHINES)
        )
        return OrderMachines(id=name, task=_ORDERS[task], host=host, machines=orders)
    if task == "migrate vm":
        return _migration(fields, host, name)
    if task == "repin vm":
        return RepinMachine(
            id=name, name=fields.text("vm-name"), vcpu_map=_vcpu_map(fields.get("vcpu-map"))
        )
    raise UnparsableError(f"task: {shown(task)} is no task of the migration framework")


def decode_machine_result(fields: Fields, task: str, name: str) -> MachineResult:
    """Decode a result of the migration framework. Raise UnparsableError if invalid."""
    del task
    event = fields.text("result").replace("_", " ")
    if event not in _EVENTS:
        raise UnparsableError(f"result: {shown(event)} is unknown")
    parts = fields.maps("list", _MOST_MACHINES) if "list" in fields else [fields]
    durations: dict[str, float] = {}
    for phase, value in as_map(fields.get("time-measurement"), "time-measurement").items():
        seconds = to_value(value, "time-measurement")
        if not isinstance(seconds, str) and len(durations) < _MOST_PHASES:
            durations[phase] = seconds
    return MachineResult(
        id=name,
        event=cast("MachineEvent", event),
        machines=tuple(map(_outcome, parts)),
        scheduler=fields.text("scheduler", ""),
        durations=durations,
    )


def _outcome(part: Fields) -> MachineOutcome:
    status = part.text("status").casefold()
    if status not in {"success", "error"}:
        raise UnparsableError(f"status: expected success or error, not {shown(status)}")
    name = part.text("vm-name")
    if len(name) > _LONGEST_NAME:
        raise UnparsableError(f"vm-name: longer than {_LONGEST_NAME} characters")
    return MachineOutcome(
        name=name,
        is_success=status == "success",
        process_id=part.uint("process-id", 0),
        details=part.prose("details"),
    )


def _configuration(part: Fields) -> MachineConfiguration:
    name, xml = part.text("vm-name", ""), part.get("xml")
    if not isinstance(xml, str | None):
        raise UnparsableError("xml: expected text")
    if not name and not xml:
        raise UnparsableError("vm-configurations: neither vm-name nor xml")
    pairs = part.maps("pci-ids", _MOST_MACHINES) if "pci-ids" in part else []
    return MachineConfiguration(
        name=name,
        xml=xml or "",
        memory=part.optional_uint("memory"),
        vcpus=part.optional_uint("vcpus"),
        pci_ids=tuple((pair.uint("vendor"), pair.uint("device")) for pair in pairs),
        is_transient=part.flag("transient", default=False),
    )


def _migration(fields: Fields, host: str, name: str) -> MigrateMachine:
    parameter = Fields(fields.get("parameter"), "parameter")
    kind = parameter.text("migration-type", "live")
    if kind not in _MIGRATIONS:
        raise UnparsableError(f"migration-type: {shown(kind)} is unknown")
    swap = parameter.get("swap-with") or fields.get("swap-with")
    return MigrateMachine(
        id=name,
        host=host,
        machine=MigratingMachine(
            name=fields.text("vm-name"),
            hook_processes=parameter.optional_uint("pscom-hook-procs"),
            vcpu_map=_vcpu_map(parameter.get("vcpu-map")),
        ),
        destination=fields.text("destination"),
        swap_with=None if swap is None else _swapped(Fields(swap, "swap-with")),
        migration_type=_MIGRATIONS[kind],
        uses_rdma=parameter.flag("rdma-migration", default=False),
        retries=parameter.optional_uint("retry-counter"),
        measures_time=fields.flag("time-measurement", default=False),
    )


def _swapped(part: Fields) -> MigratingMachine:
    return MigratingMachine(
        name=part.text("vm-name"),
        hook_processes=part.optional_uint("pscom-hook-procs"),
        vcpu_map=_vcpu_map(part.get("vcpu-map")),
    )


def _vcpu_map(value: Document) -> VcpuMap:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MOST_CPUS:
        raise UnparsableError("vcpu-map: expected a list of lists of CPUs")
    return tuple(to_uints(each, "vcpu-map", _MOST_CPUS) for each in value)
