"""Encoder of messages, for readers of the specification's form and of the programs' form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.fast.messages.documents import write_document
from ccagent.agents.fast.messages.structures import (
    AgentInit,
    AgentQuit,
    ApplicationKpis,
    ApplicationStatus,
    BandwidthRequest,
    BandwidthResponse,
    ConfigurationAnswer,
    ConnectionRequest,
    InitAgent,
    KpiReport,
    MachineConfiguration,
    MachineOutcome,
    MachineResult,
    MigrateMachine,
    MigratingMachine,
    OrderMachines,
    RepinMachine,
    StartMachines,
    StopMonitoring,
    TaskAnswer,
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


def encode_fast(message: FastMessage) -> bytes:
    """Encode a message, framed between `---`."""
    document = _document(message)
    if message.id:
        document["id"] = message.id
    return write_document(document)


def _document(message: FastMessage) -> dict[str, Any]:
    """Return the document of a message. Raise EncodingError if it is no FAST message."""
    found = _agent_document(message) or _peer_document(message)
    return machine_document(message) if found is None else found


def _agent_document(message: FastMessage) -> dict[str, Any] | None:
    """Return the document of a message of the agent; None for another message."""
    match message:
        case AgentInit(source=source):
            # The specification and the scheduler need `source`, fast-lib needs `hostname`.
            return {"task": "init", "source": source, "hostname": source}
        case AgentQuit(source=source):
            return {"task": "quit", "source": source, "hostname": source}
        case ConfigurationAnswer():
            status = "accepted" if message.is_accepted else "denied"
            found = {"task": "configuration", "source": message.source, "status": status}
            return found | _details(message.details)
        case TaskAnswer():
            status = "success" if message.is_success else "error"
            found = {"task": message.task, "source": message.source, "status": status}
            return found | _details(message.details)
        case KpiReport():
            return _report(message)
        case BandwidthResponse():
            return _response(message)
        case _:
            return None


def _peer_document(message: FastMessage) -> dict[str, Any] | None:
    """Return the document of a message of a scheduler or application; None for another message."""
    match message:
        case InitAgent():
            kpi = {"categories": [{name: True} for name in message.categories]}
            return {"task": "init agent", "KPI": kpi | {"repeat": message.repeat}}
        case StopMonitoring():
            job = {"job-id": message.job_id, "process-id": message.process_id}
            return {"task": "stop monitoring", "job-description": job}
        case BandwidthRequest(cores=cores):
            return {"task": "mmbwmon request", "cores": [*cores]}
        case ConnectionRequest(task=task):
            return {"task": task}
        case ApplicationStatus():
            return {
                "task": "status",
                "source": message.job,
                "migration": "yes" if message.is_migratable else "no",
                "supported_KPI": [*message.supported],
            }
        case ApplicationKpis():
            values = [{name: value} for name, value in message.values.items()]
            return {"task": "KPIs", "source": message.job, "supported_KPI": values}
        case _:
            return None


def _details(details: str) -> dict[str, str]:
    return {"details": details} if details else {}


def _report(message: KpiReport) -> dict[str, Any]:
    # No key `result`: fast-lib's scheduler would take it for another message.
    found: dict[str, Any] = {"task": "KPI", "source": message.source}
    job: dict[str, Any] = {}
    if message.job_id:
        job["job-id"] = message.job_id
    if message.process_id:
        job["process-id"] = message.process_id
    if message.vm_name:
        job["vm-name"] = message.vm_name
    if job:
        found["job-description"] = job
    return found | {"KPIS": [{name: _plain(value)} for name, value in message.values.items()]}


def _plain(value: float | str) -> float | str:
    """Return a whole number as int: peers in C++ do not read `5.0` as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _response(message: BandwidthResponse) -> dict[str, Any]:
    found: dict[str, Any] = {"task": "mmbwmon response", "cores": [*message.cores]}
    if message.value is None:
        return found | {"status": "error"} | _details(message.details)
    # The specification has `response`, fast-lib has `result`.
    return (
        found
        | {"result": message.value, "response": message.value}
        | {"status": "success" if message.is_valid else "error", "valid": message.is_valid}
        | {"cpu-share": message.cpu_share, "bandwidth": message.bandwidth}
        | _details(message.details)
    )
