"""Name, partition and limits of a job, from the environment of one of its processes.

Users can change their environment: these values are only displayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_MOST_ASKED = 4
_LONGEST = 256
_DIGITS = 12
_CPUS = b"SLURM_CPUS_ON_NODE"


class JobEnvironment(NamedTuple):
    """The variables that Slurm sets in the environment of a job.

    start, end: seconds since 1970, 0: unknown. cpus: on this node, 0: unknown.
    """

    name: str = ""
    partition: str = ""
    start: int = 0
    end: int = 0
    cpus: int = 0


def parse_job_environment(content: bytes) -> JobEnvironment | None:
    """Parse /proc/PID/environ. Return None if it lacks Slurm's variables."""
    found: dict[bytes, bytes] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (name.startswith(b"SLURM_JOB_") or name == _CPUS):
            found.setdefault(name, value)

    def text(name: bytes) -> str:
        return found.get(name, b"")[:_LONGEST].decode("utf-8", "replace")

    def number(name: bytes, digits: int) -> int:
        value = found.get(name, b"")
        return int(value) if value.isdigit() and len(value) <= digits else 0

    if not found.keys() - {_CPUS}:
        return None
    return JobEnvironment(
        text(b"SLURM_JOB_NAME"),
        text(b"SLURM_JOB_PARTITION"),
        number(b"SLURM_JOB_START_TIME", _DIGITS),
        number(b"SLURM_JOB_END_TIME", _DIGITS),
        number(_CPUS, 5),
    )


def read_job_environment(node: Node, pids: Iterable[int]) -> JobEnvironment | None:
    """Return the job's variables from the first process that has them; None if none has."""
    for pid in sorted(pids)[:_MOST_ASKED]:
        try:
            found = parse_job_environment(node.read(f"proc/{pid}/environ"))
        except CcagentError:
            continue
        if found is not None:
            return found
    return None
