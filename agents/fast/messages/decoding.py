"""Decoder of payloads: the forms of the specification, and the forms that programs send.

A map may be a list of one-key maps, a document may have a `---` after it, and a request may lack
its `task`. `decode` returns a Refusal for anything else; it never raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, cast, get_args

from ccagent.agents.fast.messages.documents import (
    Fields,
    as_map,
    parse_document,
    shown,
    to_flag,
    to_uints,
    to_value,
)
from ccagent.agents.fast.messages.structures import (
    KPIS,
    AgentInit,
    AgentQuit,
    ApplicationKpis,
    ApplicationStatus,
    BandwidthRequest,
    BandwidthResponse,
    ConfigurationAnswer,
    ConnectionRequest,
    FastMessage,
    InitAgent,
    KpiReport,
    MachineConfiguration,
    MachineEvent,
    MachineOrder,
    MachineOutcome,
    MachineResult,
    MigrateMachine,
    MigratingMachine,
    OrderMachines,
    Refusal,
    RepinMachine,
    StartMachines,
    StopMonitoring,
    TaskAnswer,
    find_kpi,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.fast.messages.documents import Document
    from ccagent.agents.fast.messages.structures import VcpuMap

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

Subject = Literal[
    "agent task", "agent status", "bandwidth request", "bandwidth response",
    "machine task", "machine result", "connection request",
    "application status", "application kpis",
]  # fmt: skip
"""Kinds of topics, by their messages."""

LONGEST_ID = 128
MOST_CORES = 4096
_MOST_KPIS = 200
_LONGEST_REASON = 200

# The specification shows the list on one line; that is not YAML.
_ONE_LINE = re.compile(
    rb"task:\s*stop[ _]monitoring\s+job-description:\s*job-id:\s*(\S{1,64})"
    rb"\s+process-id:\s*(\d{1,10})\s*"
)
_KPI_OFF = frozenset({"false", "no", "off"})


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


def decode(subject: Subject, payload: bytes, hint: str = "") -> FastMessage | Refusal:
    """Decode a payload. hint: the last level of its topic; it may name the task."""
    task = hint.replace("_", " ")
    name = ""
    try:
        fields = Fields(_document(payload))
        name = fields.text("id", "")
        if len(name) > LONGEST_ID:
            name = ""
            raise UnparsableError(f"id: longer than {LONGEST_ID} characters")  # noqa: TRY301
        task = fields.text("task", task).replace("_", " ")
        return _DECODERS[subject](fields, task, name)
    except UnparsableError as error:
        return Refusal(reason=str(error)[:_LONGEST_REASON], task=task, id=name)


def _document(payload: bytes) -> Document:
    line = _ONE_LINE.fullmatch(payload.replace(b"---", b" ").strip())
    if line is None or b"\n" in payload.strip().strip(b"-").strip():
        return parse_document(payload)
    job, process = (each.decode("utf-8", "replace") for each in line.groups())
    return {"task": "stop monitoring", "job-description": {"job-id": job, "process-id": process}}


def _agent_task(fields: Fields, task: str, name: str) -> FastMessage:
    if task == "init agent" or (task in {"", "task"} and "KPI" in fields):
        return _init_agent(fields, name)
    if task == "stop monitoring" or (task in {"", "task"} and "job-description" in fields):
        job = Fields(fields.get("job-description"), "job-description")
        if "job-id" not in job and "process-id" not in job:
            raise UnparsableError("job-description: neither job-id nor process-id")
        return StopMonitoring(
            id=name, job_id=job.text("job-id", ""), process_id=job.uint("process-id", 0)
        )
    raise UnparsableError(f"task: {shown(task)} is no task of the agent")


def _init_agent(fields: Fields, name: str) -> InitAgent:
    if "KPI" not in fields:
        raise UnparsableError("KPI: missing")
    kpi = Fields(fields.get("KPI"), "KPI")
    chosen = as_map(kpi.get("categories"), "KPI.categories")
    if len(chosen) > _MOST_KPIS:
        raise UnparsableError(f"KPI.categories: {len(chosen)}, at most {_MOST_KPIS}")
    wanted: list[str] = []
    for category, value in chosen.items():
        found = find_kpi(category)
        if found is None:
            raise UnparsableError(
                f"KPI.categories: {shown(category)} is unknown; allowed: {', '.join(KPIS)}"
            )
        is_off = isinstance(value, str) and value.strip().casefold() in _KPI_OFF
        if not is_off and found not in wanted:
            wanted.append(found)
    if chosen and not wanted:
        raise UnparsableError("KPI.categories: all are disabled")
    return InitAgent(id=name, categories=tuple(wanted), repeat=kpi.uint("repeat"))


def _bandwidth_request(fields: Fields, task: str, name: str) -> BandwidthRequest:
    if task not in {"", "request", "mmbwmon request"}:
        raise UnparsableError(f"task: {shown(task)} is no request for a measurement")
    if "cores" not in fields:
        raise UnparsableError("cores: missing")
    cores = to_uints(fields.get("cores"), "cores", MOST_CORES)
    if not cores:
        raise UnparsableError("cores: none")
    return BandwidthRequest(id=name, cores=tuple(dict.fromkeys(cores)))


def _bandwidth_response(fields: Fields, task: str, name: str) -> BandwidthResponse:
    del task
    cores = to_uints(fields.get("cores"), "cores", MOST_CORES) if "cores" in fields else ()
    value = fields.get("result") or fields.get("response")
    number = None if value is None else to_value(value, "response")
    if isinstance(number, str):
        raise UnparsableError(f"response: expected a number, not {shown(number)}")
    return BandwidthResponse(
        id=name,
        cores=cores,
        value=number,
        is_valid=fields.flag("valid", default=True),
        cpu_share=_number(fields, "cpu-share"),
        bandwidth=_number(fields, "bandwidth"),
        details=fields.prose("details"),
    )


def _agent_status(fields: Fields, task: str, name: str) -> FastMessage:
    source = fields.text("source", fields.text("hostname", ""))
    if not source:
        raise UnparsableError("source: missing")
    details = fields.prose("details")
    if task == "init":
        return AgentInit(id=name, source=source)
    if task == "quit":
        return AgentQuit(id=name, source=source)
    if task == "configuration":
        status = _one_of(fields, "status", ("accepted", "denied"))
        return ConfigurationAnswer(
            id=name, source=source, is_accepted=status == "accepted", details=details
        )
    if task == "KPI":
        job = Fields(fields.get("job-description"), "job-description")
        return KpiReport(
            id=name,
            source=source,
            values=_values(fields.get("KPIS"), "KPIS"),
            job_id=job.text("job-id", ""),
            process_id=job.uint("process-id", 0),
            vm_name=job.text("vm-name", ""),
        )
    status = _one_of(fields, "status", ("success", "error"))
    return TaskAnswer(
        id=name, source=source, task=task, is_success=status == "success", details=details
    )


def _connection_request(fields: Fields, task: str, name: str) -> ConnectionRequest:
    del fields
    if task not in {"suspend", "resume"}:
        raise UnparsableError(f"task: expected suspend or resume, not {shown(task)}")
    return ConnectionRequest(id=name, task=cast("Literal['suspend', 'resume']", task))


def _application_status(fields: Fields, task: str, name: str) -> ApplicationStatus:
    del task
    value = fields.get("supported_KPI")
    return ApplicationStatus(
        id=name,
        job=fields.text("source"),
        is_migratable=to_flag(fields.get("migration") or "yes", "migration"),
        supported=tuple(as_map(value, "supported_KPI")),
    )


def _application_kpis(fields: Fields, task: str, name: str) -> ApplicationKpis:
    del task
    # The specification repeats the key of the status message here.
    key = "KPIS" if "KPIS" in fields else "supported_KPI"
    return ApplicationKpis(id=name, job=fields.text("source"), values=_values(fields.get(key), key))


def _values(value: Document, where: str) -> dict[str, float | str]:
    found = as_map(value, where)
    if len(found) > _MOST_KPIS:
        raise UnparsableError(f"{where}: {len(found)} values, at most {_MOST_KPIS}")
    return {name: to_value(each, f"{where}: {shown(name)}") for name, each in found.items()}


def _number(fields: Fields, key: str) -> float:
    value = to_value(fields.get(key) or "0", key)
    return 0.0 if isinstance(value, str) else value


def _one_of(fields: Fields, key: str, choices: tuple[str, ...]) -> str:
    text = fields.text(key).casefold()
    if text not in choices:
        raise UnparsableError(f"{key}: expected {' or '.join(choices)}, not {shown(text)}")
    return text


_DECODERS: dict[Subject, Callable[[Fields, str, str], FastMessage]] = {
    "agent task": _agent_task,
    "agent status": _agent_status,
    "bandwidth request": _bandwidth_request,
    "bandwidth response": _bandwidth_response,
    "machine task": decode_machine_task,
    "machine result": decode_machine_result,
    "connection request": _connection_request,
    "application status": _application_status,
    "application kpis": _application_kpis,
}
