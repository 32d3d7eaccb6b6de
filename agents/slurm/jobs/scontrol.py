"""Details of running jobs from scontrol: CPUs and GPUs on each node, text, script.

One scontrol process shows many jobs: it reads commands from standard input. A random host name
separates the outputs: `show hostnames` prints it without contacting slurmctld.

The text contains values chosen by users, including line breaks. So each job is shown separately,
and duplicate lines in its text are ignored, because one of them may be the user's.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm.values import readable
from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import expand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.envelopes import SlurmJob

_STATE = re.compile(r"^ {3}JobState=(\w+)", re.MULTILINE)
_LINE = re.compile(r"^ {5}Nodes=(\S+) CPU_IDs=(\S*) Mem=\d+ GRES=(.*)$", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,:()]+)?:\d+\(IDX:([0-9,-]+)\)")
_IDS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)
_MOST_IDS = 8192
_LONGEST_TEXT = 16_384
_LONGEST_SCRIPT = 65_536


class NodeShare(NamedTuple):
    """A job's share of a node: CPUs by Slurm's numbers, GPUs by index.

    gres: all generic resources, as `gpu:a100:2(IDX:0-1)`.
    """

    cpus: list[int]
    gpus: list[int]
    gres: str = ""


class JobDetails(NamedTuple):
    """Details of a job from scontrol. nodes: empty for an ended job."""

    text: str
    nodes: dict[str, NodeShare]
    script: str = ""


NO_DETAILS = JobDetails("", {})


def new_token() -> str:
    """Return a random host name that users can't guess."""
    return f"x{os.urandom(12).hex()}"


def name_of(job: SlurmJob) -> str:
    """Return the id for scontrol of this job alone, not of its whole array or het job."""
    if job.array_job_id:
        return f"{job.array_job_id}_{job.array_task_id}"
    if job.het_job_id:
        return f"{job.het_job_id}+{job.het_job_offset}"
    return str(job.job_id)


def name_of_row(shown_id: bytes, raw_id: bytes) -> str:
    """Return the name of a job in the queue, equal to `name_of` of its record."""
    return readable(shown_id if b"_" in shown_id or b"+" in shown_id else raw_id)


def questions(names: Iterable[str], token: str, *, with_script: bool) -> bytes:
    """Return the commands for standard input. `parse` reads their output."""
    lines: list[str] = []
    for name in names:
        lines += (f"show job {name}", f"show hostnames {token}")
        if with_script:
            lines.append(f"write batch_script {name} -")
        lines.append(f"show hostnames {token}")
    return "\n".join([*lines, "quit", ""]).encode()


def parse(output: bytes, names: Iterable[str], token: str) -> dict[str, JobDetails]:
    """Return the details of the jobs that slurmctld knows, by requested name."""
    found: dict[str, JobDetails] = {}
    # With readline, scontrol echoes each command after the prompt. Without it, the prompt precedes
    # the output.
    separator = rf"(?:scontrol: show hostnames {token}\r?\n)?^(?:scontrol: )?{token}\r?\n"
    parts = re.split(separator, readable(output), flags=re.MULTILINE)
    for name, shown, script in zip(names, parts[::2], parts[1::2], strict=False):
        begin = shown.find("JobId=")
        if begin >= 0:
            text = shown[begin:].strip()
            found[name] = JobDetails(text[:_LONGEST_TEXT], parse_shares(text), _script_in(script))
    return found


def parse_shares(text: str) -> dict[str, NodeShare]:
    """Return a job's share of each node, from lines `Nodes=c[1-2] CPU_IDs=0-3 Mem=400 GRES=`.

    Return nothing if a node has two such lines (one is the user's), or if the job is pending.
    """
    states = _STATE.findall(text)
    if len(states) != 1 or states[0] == "PENDING":
        return {}
    shares: dict[str, NodeShare] = {}
    for hosts, cpus, gres in _LINE.findall(text):
        try:
            names = expand(hosts)
            ids = parse_ids(cpus)
            gpus = parse_gpus(gres)
        except UnparsableError:
            return {}
        for name in names:
            if name in shares:
                return {}
            shares[name] = NodeShare(ids, gpus, gres.strip())
    return shares


def parse_gpus(gres: str) -> list[int]:
    """Return the indices of the GPUs in `gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)`.

    Raise UnparsableError.
    """
    return [index for one in _GPUS.findall(gres) for index in parse_ids(one)]


def parse_ids(text: str) -> list[int]:
    """Parse `0-3,8`. Raise UnparsableError if it is invalid or too long."""
    if not text:
        return []
    if not _IDS.fullmatch(text):
        raise UnparsableError(f"{text[:40]!r} is not a list of numbers")
    ids: list[int] = []
    for one in text.split(","):
        first, _, last = one.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if len(ids) + len(numbers) > _MOST_IDS:
            raise UnparsableError(f"{text[:40]!r} has too many numbers")
        ids += numbers
    return ids


def _script_in(text: str) -> str:
    """Return the script without the echo of readline before it."""
    begin = text.find("#!")
    return text[begin : begin + _LONGEST_SCRIPT] if begin >= 0 else ""
