"""Encoder of messages about virtual machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.fast.messages.structures import (
    MachineConfiguration,
    MachineOutcome,
    MachineResult,
    MigrateMachine,
    MigratingMachine,
    OrderMachines,
    RepinMachine,
    StartMachines,
)
from ccagent.errors import EncodingError

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import FastMessage


def machine_document(message: FastMessage) -> dict[str, Any]:
    """Return the document of a message about virtual machines. Raise EncodingError for others."""
    match message:
        case StartMachines():
            machines = [_configuration(each) for each in message.machines]
            return _task("start vm", message.host) | {"vm-configurations": machines}
        case OrderMachines():
            orders: list[dict[str, Any]] = []
            for each in message.machines:
                order: dict[str, Any] = {"vm-name": each.name}
                if message.task == "stop vm":
                    order |= {"force": each.is_forced, "undefine": each.is_undefined}
                orders.append(order)
            return _task(message.task, message.host) | {"list": orders}
        case MigrateMachine():
            return _migration(message)
        case RepinMachine():
            map_ = [[*cpus] for cpus in message.vcpu_map]
            return {"task": "repin vm", "vm-name": message.name, "vcpu-map": map_}
        case MachineResult():
            return _result(message)
        case _:
            raise EncodingError(f"{type(message).__name__} is no message of FAST")


def _task(task: str, host: str) -> dict[str, Any]:
    return {"host": host, "task": task} if host else {"task": task}


def _configuration(machine: MachineConfiguration) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if machine.name:
        found["vm-name"] = machine.name
    if machine.xml:
        found["xml"] = machine.xml
    if machine.memory is not None:
        found["memory"] = machine.memory
    if machine.vcpus is not None:
        found["vcpus"] = machine.vcpus
    if machine.pci_ids:
        found["pci-ids"] = [{"vendor": one, "device": other} for one, other in machine.pci_ids]
    return found | {"transient": machine.is_transient}


def _migration(message: MigrateMachine) -> dict[str, Any]:
    parameter: dict[str, Any] = {}
    if message.retries is not None:
        parameter["retry-counter"] = message.retries
    parameter |= {"migration-type": message.migration_type, "rdma-migration": message.uses_rdma}
    parameter |= _migrating(message.machine)
    if message.swap_with is not None:
        parameter["swap-with"] = {"vm-name": message.swap_with.name} | _migrating(message.swap_with)
    return _task("migrate vm", message.host) | {
        "vm-name": message.machine.name,
        "destination": message.destination,
        "time-measurement": message.measures_time,
        "parameter": parameter,
    }


def _migrating(machine: MigratingMachine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if machine.hook_processes is not None:
        found["pscom-hook-procs"] = machine.hook_processes
    if machine.vcpu_map:
        found["vcpu-map"] = [[*cpus] for cpus in machine.vcpu_map]
    return found


def _result(message: MachineResult) -> dict[str, Any]:
    found: dict[str, Any] = {"scheduler": message.scheduler} if message.scheduler else {}
    found["result"] = message.event
    machines = [_outcome(each) for each in message.machines]
    if message.event in {"vm migrated", "vm repinned"} and len(machines) == 1:
        found |= machines[0]
    else:
        found["list"] = machines
    if message.durations:
        found["time-measurement"] = [{tag: value} for tag, value in message.durations.items()]
    return found


def _outcome(machine: MachineOutcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "vm-name": machine.name,
        "status": "success" if machine.is_success else "error",
    }
    if machine.details:
        found["details"] = machine.details
    if machine.process_id:
        found["process-id"] = machine.process_id
    return found
