"""Details of a job, read from start events of ClusterCockpit and from envelopes of the agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.agents.slurm import tres
from ccagent.config.settings import as_table

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 1024
"""Maximum characters of a text. Users choose the names of their jobs."""


class StoredJobDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Details of a job. None or empty: unknown.

    time_limit: s. cores, gpus: allocated on all nodes. asked_cores: requested cores, possibly
    fewer. memory: B allocated on all nodes. cpu_seconds: from accounting, after the job's end.
    cpus: hardware threads by node. cards: PCI addresses of GPUs by node. is_exclusive: no other job
    may run on its nodes. has_gpu_share: it has parts of GPUs, such as gres/shard. has_terminal: it
    was started from a terminal, without a script.
    """

    name: str = ""
    account: str = ""
    partition: str = ""
    time_limit: int | None = None
    cores: int | None = None
    asked_cores: int | None = None
    memory: int | None = None
    gpus: int | None = None
    exit_code: int | None = None
    cpu_seconds: int | None = None
    cpus: dict[str, int] = {}
    cards: dict[str, list[str]] = {}
    is_exclusive: bool | None = None
    has_gpu_share: bool | None = None
    has_terminal: bool | None = None

    def merged(self, later: StoredJobDetails) -> StoredJobDetails:
        """Return these details, updated with the known details of a later message."""
        known = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(later, name)) not in (None, "", {})
        }
        return msgspec.structs.replace(self, **known)


class StartedResource(msgspec.Struct, frozen=True):
    """A node of a job in a start event."""

    hostname: str
    hwthreads: list[int] | None = None
    accelerators: list[str] | None = None


_MOST_CORES, _MOST = 10**9, 10**17
"""Maximum number of cores or GPUs, and of bytes or seconds, of a job. Larger ones are unknown."""


def _amount(value: object, most: int = _MOST) -> int | None:
    """Return an amount; None for a missing or implausible one."""
    return value if isinstance(value, int) and 0 <= value <= most else None


_BATCH = re.compile(r"^ {3}.*\bBatchFlag=([01])\b", re.MULTILINE)
_AT_TERMINAL = re.compile(
    r"^ {3}(?:Command=(?:\(null\)|(?:\S*/)?(?:ba|z|t?c|fi|k)?sh) *|SubmitLine=.* --pty\b.*)$",
    re.MULTILINE,
)
"""Lines of `scontrol show job` for salloc, for `srun --pty SHELL`, and in newer versions for
`srun --pty`. Slurm has no word for a terminal."""


class _MetaData(msgspec.Struct, frozen=True, rename="camel"):
    """slurm_info: output of scontrol."""

    job_name: str = ""
    slurm_info: str = ""

    def has_terminal(self) -> bool | None:
        """Return whether the job was started from a terminal, without a script; None: unknown."""
        found = _BATCH.search(self.slurm_info)
        if found is None or found[1] == "1":
            return None if found is None else False
        return True if _AT_TERMINAL.search(self.slurm_info) else None


class StartedJob(msgspec.Struct, frozen=True, rename="camel"):
    """The start event of a job, in cc-backend's format. requested_memory: MB."""

    job_id: int
    cluster: str
    start_time: int
    resources: list[StartedResource]
    user: str = ""
    project: str = ""
    partition: str = ""
    shared: str = ""
    walltime: int = 0
    num_hwthreads: int = msgspec.field(default=0, name="numHwthreads")
    num_acc: int | None = None
    requested_memory: int = 0
    meta_data: _MetaData | None = None

    def details(self) -> StoredJobDetails:
        """Return the details of the event."""
        return StoredJobDetails(
            name=(self.meta_data.job_name if self.meta_data else "")[:_LONGEST],
            account=self.project[:_LONGEST],
            partition=self.partition[:_LONGEST],
            time_limit=_amount(self.walltime) or None,
            cores=_amount(self.num_hwthreads, _MOST_CORES) or None,
            memory=_amount(self.requested_memory * 1024 * 1024) or None,
            gpus=_amount(self.num_acc, _MOST_CORES),
            cpus={one.hostname: len(one.hwthreads) for one in self.resources if one.hwthreads},
            cards={one.hostname: one.accelerators for one in self.resources if one.accelerators},
            is_exclusive={"none": True, "single_user": False, "multi_user": False}.get(self.shared),
            has_terminal=self.meta_data.has_terminal() if self.meta_data else None,
        )


def read_details(job: Mapping[str, Any], *, is_waiting: bool = False) -> StoredJobDetails:
    """Return the details of a job in an envelope of the agent `jobs`.

    is_waiting: it has not started; its amounts are those that it asks for.
    time_limit in the envelope is an ExtendedUint: 0 unset, 1 infinite, n + 2 for n seconds.
    """
    allocated = _text(job, "requested_resources" if is_waiting else "allocated_resources")
    limit, asked = job.get("time_limit"), _text(job, "requested_resources")
    accounting = as_table(job.get("sacct"))
    used = [accounting.get(name) for name in ("UserCPU", "SystemCPU")]
    seconds = [number for number in used if isinstance(number, int)]
    has_ended = bool(job.get("end_time"))
    code = job.get("exit_code", 0)
    return StoredJobDetails(
        name=_text(job, "job_name"),
        account=_text(job, "account"),
        partition=_text(job, "partition"),
        time_limit=_amount(limit - 2) if isinstance(limit, int) else None,
        cores=_amount(tres.count(allocated, "cpu"), _MOST_CORES) or None,
        asked_cores=_amount(tres.count(asked, "cpu"), _MOST_CORES) or None,
        memory=_amount(tres.total_memory(allocated) * 1024) or None,
        gpus=_amount(tres.count_gpus(allocated), _MOST_CORES) if allocated else None,
        has_gpu_share=tres.has_gpu_share(allocated) or None,
        exit_code=code if has_ended and isinstance(code, int) else None,
        cpu_seconds=_amount(sum(seconds)) if has_ended and seconds else None,
    )


def _text(job: Mapping[str, Any], key: str) -> str:
    value = job.get(key)
    return value[:_LONGEST] if isinstance(value, str) else ""


def details_of_row(text: str | None) -> StoredJobDetails:
    """Return the stored details; empty details if they can't be decoded."""
    try:
        return msgspec.json.decode(text or "{}", type=StoredJobDetails)
    except msgspec.DecodeError:
        return StoredJobDetails()
