"""Decoder of payloads: the forms of the specification, and the forms that programs send.

A map may be a list of one-key maps, a document may have a `---` after it, and a request may lack
its `task`. `decode` returns a Refusal for anything else; it never raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.documents import (
    Fields,
    as_map,
    parse_document,
    show_value,
    to_flag,
    to_uints,
    to_value,
)
from ccagent.agents.fast.messages.structures import KPIS, find_kpi
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.fast.messages.documents import Document

Subject = Literal[
    "agent task", "agent status", "bandwidth request", "bandwidth response",
    "machine task", "machine result", "application status", "application kpis",
]  # fmt: skip
"""Kinds of topics, by their messages."""

LONGEST_ID = 128
MOST_CORES = 4096
_MOST_KPIS = 200
_MOST_MACHINES = 1000
_MOST_CPUS = 4096
_MOST_PHASES = 100
_LONGEST_REASON = 1000
_MOST_IGNORED = 8
"""Maximum of unknown categories that an answer names."""

_LONGEST_NAME = 256
"""Maximum length of machine names: they are kept on disk, and a peer can send many."""

_EVENTS, _ORDERS = get_args(fast.MachineEvent), ("stop vm", "suspend vm", "resume vm")
_MIGRATIONS, _MODES = get_args(fast.MigrationType), get_args(fast.EvacuationMode)
_NEVER = ("driver", "transport")
_NEVER_OF_PARTS = (
    *_NEVER, "regex", "devs", "ivshmem", "probe-hostname", "vcpu-map", "memnode-map",
)  # fmt: skip
"""Fields of existing programs that no node accepts: they are named in the refusal."""
_NAME_ELEMENT = re.compile(r"<name>([^<]*)</name>")
_KPI_OFF = frozenset({"false", "no", "off"})

# The specification shows the list on one line; that is not YAML.
_ONE_LINE = re.compile(
    rb"task:\s*stop[ _]monitoring\s+job-description:\s*job-id:\s*(\S{1,64})"
    rb"\s+process-id:\s*(\d{1,10})\s*"
)


def decode(subject: Subject, payload: bytes, hint: str = "") -> fast.FastMessage | fast.Refusal:
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
        return fast.Refusal(reason=str(error)[:_LONGEST_REASON], task=task, id=name)


def _document(payload: bytes) -> Document:
    line = _ONE_LINE.fullmatch(payload.replace(b"---", b" ").strip())
    if line is None or b"\n" in payload.strip().strip(b"-").strip():
        return parse_document(payload)
    job, process = (word.decode("utf-8", "replace") for word in line.groups())
    return {"task": "stop monitoring", "job-description": {"job-id": job, "process-id": process}}


def _agent_task(fields: Fields, task: str, name: str) -> fast.FastMessage:
    if task == "init agent" or (task in {"", "task"} and "KPI" in fields):
        return _init_agent(fields, name)
    if task == "stop monitoring" or (task in {"", "task"} and "job-description" in fields):
        job = Fields(fields.get("job-description"), "job-description")
        job_id, process_id = job.text("job-id", ""), job.uint("process-id", 0)
        if not job_id and not process_id:
            raise UnparsableError("job-description: neither job-id nor process-id")
        return fast.StopMonitoring(id=name, job_id=job_id, process_id=process_id)
    raise UnparsableError(f"task: {show_value(task)} is no task of the agent")


def _init_agent(fields: Fields, name: str) -> fast.InitAgent:
    if "KPI" not in fields:
        raise UnparsableError("KPI: missing")
    kpi = Fields(fields.get("KPI"), "KPI")
    chosen = as_map(kpi.get("categories"), "KPI.categories")
    if len(chosen) > _MOST_KPIS:
        raise UnparsableError(f"KPI.categories: {len(chosen)}, at most {_MOST_KPIS}")
    wanted: list[str] = []
    unknown: list[str] = []
    for category, value in chosen.items():
        kpi_name = find_kpi(category)
        is_off = isinstance(value, str) and value.strip().casefold() in _KPI_OFF
        if kpi_name is None:
            unknown.append(show_value(category))
        elif not is_off and kpi_name not in wanted:
            wanted.append(kpi_name)
    ignored = (*unknown[:_MOST_IGNORED], *(["..."] if len(unknown) > _MOST_IGNORED else []))
    if chosen and not wanted:
        if not unknown:
            raise UnparsableError("KPI.categories: all are disabled")
        raise UnparsableError(
            f"KPI.categories: unknown: {', '.join(ignored)}; allowed: {', '.join(KPIS)}"
        )
    return fast.InitAgent(
        id=name, categories=tuple(wanted), repeat=kpi.uint("repeat"), ignored=ignored
    )


def _bandwidth_request(fields: Fields, task: str, name: str) -> fast.BandwidthRequest:
    if task not in {"", "request", "mmbwmon request"}:
        raise UnparsableError(f"task: {show_value(task)} is no request for a measurement")
    if "cores" not in fields:
        raise UnparsableError("cores: missing")
    cores = to_uints(fields.get("cores"), "cores", MOST_CORES)
    if not cores:
        raise UnparsableError("cores: none")
    return fast.BandwidthRequest(id=name, cores=tuple(dict.fromkeys(cores)))


def _bandwidth_response(fields: Fields, _task: str, name: str) -> fast.BandwidthResponse:
    cores = to_uints(fields.get("cores"), "cores", MOST_CORES) if "cores" in fields else ()
    value = fields.get("result") or fields.get("response")
    number = None if value is None else to_value(value, "response")
    if isinstance(number, str):
        raise UnparsableError(f"response: expected a number, not {show_value(number)}")
    return fast.BandwidthResponse(
        id=name,
        cores=cores,
        value=number,
        is_valid=fields.flag("valid", default=True),
        cpu_share=_number(fields, "cpu-share"),
        bandwidth=_number(fields, "bandwidth"),
        details=fields.prose("details"),
    )


def _agent_status(fields: Fields, task: str, name: str) -> fast.KpiReport:
    """Return a report of KPIs: the reference scheduler needs no other status of an agent."""
    if task != "KPI":
        raise UnparsableError(f"task: expected KPI, not {show_value(task)}")
    job = Fields(fields.get("job-description"), "job-description")
    return fast.KpiReport(
        id=name,
        source=fields.text("source", fields.text("hostname", "")),
        values=_values(fields.get("KPIS"), "KPIS"),
        job_id=job.text("job-id", ""),
        process_id=job.uint("process-id", 0),
        vm_name=job.text("vm-name", ""),
    )


def _application_status(fields: Fields, _task: str, name: str) -> fast.ApplicationStatus:
    value = fields.get("supported_KPI")
    return fast.ApplicationStatus(
        id=name,
        job=fields.text("source"),
        is_migratable=to_flag(fields.get("migration") or "yes", "migration"),
        supported=tuple(as_map(value, "supported_KPI")),
    )


def _application_kpis(fields: Fields, _task: str, name: str) -> fast.ApplicationKpis:
    # The specification repeats the key of the status message here.
    key = "KPIS" if "KPIS" in fields else "supported_KPI"
    job = fields.text("source")
    return fast.ApplicationKpis(id=name, job=job, values=_values(fields.get(key), key))


def _machine_task(fields: Fields, task: str, name: str) -> fast.FastMessage:
    parameter = Fields(fields.get("parameter"), "parameter")
    common: dict[str, Any] = {
        "id": name,
        "task": task,
        "is_concurrent": fields.flag("concurrent-execution", default=True),
        "refused": tuple(
            each.name(key) for each in (fields, parameter) for key in _NEVER if key in each
        ),
    }
    if task == "start vm":
        return _machine_parts(fields, "vm-configurations", fast.StartMachines, common)
    if task in _ORDERS:
        return _machine_parts(fields, "list", fast.OrderMachines, common)
    if task == "migrate vm":
        return _migration(fields, parameter, common)
    if task == "repin vm":
        return fast.RepinMachine(
            **common,
            name=_machine_name(fields),
            vcpu_map=_vcpu_map(fields.get("vcpu-map")),
            measures_time=fields.flag("time-measurement", default=False),
        )
    if task == "evacuate node":
        return _evacuation(fields, parameter, common)
    if task == "quit":
        return fast.MachineTask(**common)
    raise UnparsableError(f"task: {show_value(task)} is no task of the migration framework")


def _machine_parts(
    fields: Fields, key: str, kind: Callable[..., fast.FastMessage], common: dict[str, Any]
) -> fast.FastMessage:
    """Return a task with parts. A part with a field that no node accepts needs no name."""
    parts = fields.maps(key, _MOST_MACHINES) if fields.get(key) != [] else []
    never = {name: None for part in parts for name in _NEVER_OF_PARTS if name in part}
    if never:
        return kind(**common | {"refused": (*common["refused"], *never)}, machines=())
    read = _configuration if kind is fast.StartMachines else _machine_order
    return kind(**common, machines=tuple(map(read, parts)))


def _machine_order(fields: Fields) -> fast.MachineOrder:
    return fast.MachineOrder(
        name=_machine_name(fields),
        is_forced=fields.flag("force", default=False),
        is_undefined=fields.flag("undefine", default=False),
        measures_time=fields.flag("time-measurement", default=False),
    )


def _machine_name(fields: Fields) -> str:
    name = fields.text("vm-name")
    if len(name) > _LONGEST_NAME:
        raise UnparsableError(f"vm-name: longer than {_LONGEST_NAME} characters")
    return name


def _configuration(fields: Fields) -> fast.MachineConfiguration:
    xml = fields.get("xml")
    if not isinstance(xml, str | None):
        raise UnparsableError("xml: expected text")
    found = _NAME_ELEMENT.search(xml or "")
    name = _machine_name(fields) if "vm-name" in fields else found[1] if found else ""
    if not name and not xml:
        raise UnparsableError("vm-configurations: neither vm-name nor xml")
    pairs = fields.maps("pci-ids", _MOST_MACHINES) if "pci-ids" in fields else []
    return fast.MachineConfiguration(
        name=name,
        xml=xml or "",
        memory=fields.optional_uint("memory"),
        vcpus=fields.optional_uint("vcpus"),
        pci_ids=tuple((pair.uint("vendor"), pair.uint("device")) for pair in pairs),
        is_transient=fields.flag("transient", default=False),
        measures_time=fields.flag("time-measurement", default=False),
        template=fields.text("template", ""),
        probes=fields.flag("probe-with-ssh", default=True),
    )


def _migration(fields: Fields, parameter: Fields, common: dict[str, Any]) -> fast.MigrateMachine:
    swap = parameter.get("swap-with") or fields.get("swap-with")
    return fast.MigrateMachine(
        **common,
        **_way(fields, parameter),
        machine=_migrating(fields, parameter),
        destination=fields.text("destination"),
        swap_with=None if swap is None else _migrating(Fields(swap, "swap-with")),
    )


def _evacuation(fields: Fields, parameter: Fields, common: dict[str, Any]) -> fast.EvacuateNode:
    value = fields.get("destinations")
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names) or len(names) > _MOST_MACHINES:
        raise UnparsableError("destinations: expected a list of names")
    mode = _choice("mode", parameter.text("mode", "auto"), _MODES)
    return fast.EvacuateNode(
        **common,
        **_way(fields, parameter),
        destinations=tuple(cast("list[str]", names)),
        mode=mode,
        is_overbooked=parameter.flag("overbooking", default=True),
        hook_processes=_hook_processes(parameter),
    )


def _way(fields: Fields, parameter: Fields) -> dict[str, Any]:
    """Return how to migrate. Existing programs take an absent type as warm."""
    kind = parameter.text("migration-type", "warm")
    return {
        "migration_type": _choice("migration-type", kind, _MIGRATIONS),
        "uses_rdma": parameter.flag("rdma-migration", default=False),
        "retries": parameter.optional_uint("retry-counter"),
        "measures_time": fields.flag("time-measurement", default=False),
    }


def _migrating(named: Fields, parameter: Fields | None = None) -> fast.MigratingMachine:
    parameter = parameter or named
    return fast.MigratingMachine(
        name=_machine_name(named),
        hook_processes=_hook_processes(parameter),
        vcpu_map=_vcpu_map(parameter.get("vcpu-map")),
    )


def _hook_processes(parameter: Fields) -> fast.HookProcesses:
    if parameter.get("pscom-hook-procs") == "auto":
        return "auto"
    return parameter.optional_uint("pscom-hook-procs")


def _vcpu_map(value: Document) -> fast.VcpuMap:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MOST_CPUS:
        raise UnparsableError("vcpu-map: expected a list of lists of CPUs")
    return tuple(to_uints(cpus, "vcpu-map", _MOST_CPUS) for cpus in value)


def _machine_result(fields: Fields, _task: str, name: str) -> fast.MachineResult:
    event = _choice("result", fields.text("result").replace("_", " "), _EVENTS)
    parts = fields.maps("list", _MOST_MACHINES) if "list" in fields else [fields]
    return fast.MachineResult(
        id=name,
        event=event,
        machines=tuple(map(_outcome, parts)),
        scheduler=fields.text("scheduler", ""),
    )


def _outcome(fields: Fields) -> fast.MachineOutcome:
    status = fields.text("status").casefold()
    if status not in {"success", "error"}:
        raise UnparsableError(f"status: expected success or error, not {show_value(status)}")
    durations: dict[str, float] = {}
    for phase, value in as_map(fields.get("time-measurement"), "time-measurement").items():
        seconds = to_value(value, "time-measurement")
        if not isinstance(seconds, str) and len(durations) < _MOST_PHASES:
            durations[phase] = seconds
    return fast.MachineOutcome(
        name=_machine_name(fields),
        is_success=status == "success",
        process_id=fields.uint("process-id", 0),
        details=fields.prose("details"),
        host=fields.prose("host"),
        state=fields.prose("state"),
        durations=durations,
    )


def _values(value: Document, where: str) -> dict[str, float | str]:
    values = as_map(value, where)
    if len(values) > _MOST_KPIS:
        raise UnparsableError(f"{where}: {len(values)} values, at most {_MOST_KPIS}")
    return {name: to_value(raw, f"{where}: {show_value(name)}") for name, raw in values.items()}


def _choice(key: str, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        raise UnparsableError(f"{key}: {show_value(text)} is unknown")
    return text


def _number(fields: Fields, key: str) -> float:
    value = to_value(fields.get(key) or "0", key)
    return 0.0 if isinstance(value, str) else value


_DECODERS: dict[Subject, Callable[[Fields, str, str], fast.FastMessage]] = {
    "agent task": _agent_task,
    "agent status": _agent_status,
    "bandwidth request": _bandwidth_request,
    "bandwidth response": _bandwidth_response,
    "machine task": _machine_task,
    "machine result": _machine_result,
    "application status": _application_status,
    "application kpis": _application_kpis,
}
