"""The programs that receive messages, what each of them knows, and records in their form.

A program that gets an unknown field may refuse the whole message, block the queue behind it, or
fail. Therefore a receiver lists the fields that it knows. A new field of an envelope goes to no
named receiver until it is added here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, get_args

import msgspec

from ccagent.log import logger
from ccagent.records.message import Format, TimeUnit

if TYPE_CHECKING:
    from ccagent.records.json_encoding import Envelope
    from ccagent.records.message import JsonRecord

_ENVELOPES = ("sample", "sysinfo", "job", "cluster")
_EMPTY = msgspec.Raw(b'""')
"""An empty text that msgspec writes. It omits a text that equals the default."""

_CARD = "index uuid address manufacturer model architecture driver firmware memory"
_LIMITS = "power_limit max_power_limit min_power_limit max_ce_clock max_memory_clock"

SONAR: dict[str, str] = {
    "": "meta data errors",
    "meta": "producer version format attrs token",
    "meta.attrs": "key value",
    "errors": "time detail cluster node",
    "data": "type attributes",
    "sample": "time cluster node system jobs errors",
    "sample.errors": "time detail cluster node",
    "sample.system": "boot cpus gpus disks used_memory load1 load5 load15 runnable_entities "
    "existing_entities",
    "sample.system.gpus": "index uuid failing fan compute_mode performance_state memory ce_util "
    "memory_util temperature power power_limit ce_clock memory_clock",
    "sample.system.disks": "name major minor stats",
    "sample.jobs": "job user epoch processes",
    "sample.jobs.processes": "resident_memory virtual_memory cmd pid ppid in_container "
    "num_threads cpu_avg cpu_util cpu_time data_read data_written data_cancelled rolledup gpus",
    "sample.jobs.processes.gpus": "index uuid gpu_util gpu_memory gpu_memory_util",
    "sysinfo": "time cluster node os_name os_release architecture sockets cores_per_socket "
    "threads_per_core memory cpu_model numa_nodes distances topo_svg topo_text cards",
    "sysinfo.cards": f"{_CARD} {_LIMITS}",
    "job": "time cluster slurm_jobs",
    "job.slurm_jobs": "job_id job_state job_step job_name array_job_id array_task_id het_job_id "
    "het_job_offset user_name account submit_time time_limit partition reservation nodes priority "
    "distribution requested_resources allocated_resources requested_cpus "
    "requested_memory_per_node requested_node_count start_time suspend_time end_time exit_code "
    "sacct",
    "job.slurm_jobs.sacct": "MinCPU AllocTRES AveCPU AveDiskRead AveDiskWrite AveRSS AveVMSize "
    "ElapsedRaw SystemCPU UserCPU MaxRSS MaxVMSize",
    "cluster": "time cluster slurm partitions nodes",
    "cluster.partitions": "name nodes",
    "cluster.nodes": "names states",
}
"""The fields of Sonar's format (release 0.18.3), by path.

Paths of attributes start with the kind of the envelope.
"""


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that one program accepts.

    format, kinds: of its messages; a kind with a dot at the end is a prefix. precision: unit of
    times in lines; empty: the default of the message's kind. largest_body: maximum bytes of an HTTP
    request. fields: known fields of envelopes, by path. required_texts: fields that are sent even
    if they are empty, by path.
    takes_differences: it computes CPU time from differences of `cpu_time`, else from `cpu_util`.
    """

    format: Format
    kinds: tuple[str, ...]
    precision: TimeUnit = ""
    largest_body: int | None = None
    fields: dict[str, str] = {}
    required_texts: dict[str, tuple[str, ...]] = {}
    takes_errors_alone: bool = True
    takes_parts_of_nodes: bool = True
    takes_differences: bool = False

    def takes(self, kind: str) -> bool:
        """Return whether the program accepts messages of a kind."""
        return any(
            kind.startswith(known) if known.endswith(".") else kind == known for known in self.kinds
        )


RECEIVERS = {
    # sonalyze's insert is strict. It answers 422 to an unknown field, or to a job without one of
    # its times, and drops the whole body; an empty time is no time. It panics at an envelope
    # without data.
    "jobanalyzer": Receiver(
        format="sonar",
        kinds=_ENVELOPES,
        largest_body=1024 * 1024,
        fields=SONAR,
        required_texts={"job.slurm_jobs": ("submit_time", "start_time", "end_time")},
        takes_errors_alone=False,
        takes_differences=True,
    ),
    # It reads four fields of a job and ignores others there.
    "slurm-monitor": Receiver(
        format="sonar",
        kinds=_ENVELOPES,
        fields=SONAR
        | {
            "meta": "producer version",
            "sample.jobs": f"{SONAR['sample.jobs']} cgroup",
            "sample.jobs.cgroup": "used_memory peak_memory rss_memory anon_memory shmem_memory "
            "file_memory pss_memory memory_limit oom_kills cpu_time throttled_time data_read "
            "data_written cpu_pressure memory_pressure io_pressure",
            "job.slurm_jobs": f"{SONAR['job.slurm_jobs']} gres_detail minimum_cpus_per_node",
        },
    ),
    # It keeps one value per metric and node; values of jobs would overwrite each other.
    "cc-metric-store": Receiver(
        format="line", kinds=("metrics",), precision="s", takes_parts_of_nodes=False
    ),
    "cc-backend": Receiver(format="line", kinds=("metrics", "events."), takes_parts_of_nodes=False),
}


def fit_record(record: JsonRecord, receiver: str, *, sends_errors_alone: bool) -> JsonRecord | None:
    """Return a record as a receiver accepts it; None if the receiver does not get it.

    The errors of an envelope without data that is not sent are logged.
    """
    known = RECEIVERS[receiver] if receiver else None
    if not record.is_envelope:
        # Other records have fields that no receiver of envelopes knows.
        return record if known is None else None
    if TYPE_CHECKING:
        assert isinstance(record, Envelope)
    if known is not None and not known.takes(record.kind):
        return None
    wanted = record.takes_differences
    if wanted is not None and wanted != (known is not None and known.takes_differences):
        return None
    if record.data is None and not sends_errors_alone:
        _log_errors(record, receiver or "HTTP")
        return None
    if known is None:
        return record
    plan = _plan_of_envelope(receiver, type(record))
    return record if plan is None else _fit(record, plan)


def _log_errors(envelope: Envelope, receiver: str) -> None:
    """Log the errors of an envelope that is not sent."""
    for error in envelope.errors:
        logger.error(
            "%s of %s: %s (not sent to %s, which may fail at an envelope without data)",
            envelope.kind, error.node, error.detail, receiver,
        )  # fmt: skip


class _Plan(NamedTuple):
    """Changes of a structure.

    unknown: fields to omit, with their defaults. required: texts to write even if they are empty.
    parts: fields with structures that have changes.
    """

    unknown: dict[str, Any]
    required: tuple[str, ...]
    parts: dict[str, _Plan]


@cache
def _plan_of_envelope(receiver: str, envelope: type[Envelope]) -> _Plan | None:
    return _plan(RECEIVERS[receiver], envelope, "", envelope.kind)


def _plan(receiver: Receiver, kind: type[Any], path: str, envelope: str) -> _Plan | None:
    """Return the changes of structures at a path; None if nothing ever changes."""
    known = receiver.fields.get(path, "").split()
    unknown: dict[str, Any] = {}
    parts: dict[str, _Plan] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in known:
            is_list = field.default_factory is not msgspec.NODEFAULT
            unknown[field.name] = field.default_factory() if is_list else field.default
        elif (part := _find_structure(field.type)) is not None:
            if field.encode_name == "attributes":
                below = envelope
            elif not path:
                below = field.encode_name
            else:
                below = f"{path}.{field.encode_name}"
            if (plan := _plan(receiver, part, below, envelope)) is not None:
                parts[field.name] = plan
    plan = _Plan(unknown, receiver.required_texts.get(path, ()), parts)
    return plan if any(plan) else None


def _find_structure(kind: object) -> type[msgspec.Struct] | None:
    """Return the structure in a field's type: itself, an element of a list, or optional."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for each in get_args(kind) if (found := _find_structure(each))), None)


_Value = TypeVar("_Value", bound=msgspec.Struct)


def _fit(value: _Value, plan: _Plan) -> _Value:
    """Return a structure with the changes of a plan; the same object if nothing changes."""
    changes: dict[str, Any] = {
        name: msgspec.UNSET
        for name, default in plan.unknown.items()
        if getattr(value, name) != default
    }
    changes |= {name: _EMPTY for name in plan.required if not getattr(value, name)}
    for name, part in plan.parts.items():
        held = getattr(value, name)
        if isinstance(held, list):
            parts = cast("list[msgspec.Struct]", held)
            fitted: Any = [_fit(each, part) for each in parts]
            if any(new is not old for new, old in zip(fitted, parts, strict=True)):
                changes[name] = fitted
        elif held is not None and (fitted := _fit(held, part)) is not held:
            changes[name] = fitted
    return msgspec.structs.replace(value, **changes) if changes else value
