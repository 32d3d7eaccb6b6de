"""The processes of jobs from their control groups; user, account, partition and name of jobs."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.machine.background import BackgroundCall
from ccagent.machine.cgroup.jobs import V2, job_directories

if TYPE_CHECKING:
    from ccagent.machine.cgroup.jobs import JobDirectory
    from ccagent.machine.node import Node

_CONTROLLERS = ("cpuacct", "freezer", "memory", "cpuset", "devices", "pids")
"""Controllers of version 1. The first controller that has jobs is used."""
_PART = re.compile(r"step_[0-9a-z+_]{1,40}|task_[0-9a-z]{1,20}|user", re.ASCII)
_DEEPEST = 4
_MOST_GROUPS = 2000
_ASKED_PROCESSES = 3
_TRIES = 10
_LONGEST_NAME = 128
_PATIENCE = 0.2
_VARIABLES = {
    b"SLURM_JOB_ACCOUNT": "account",
    b"SLURM_JOB_PARTITION": "partition",
    b"SLURM_JOB_NAME": "name",
}


class JobIdentity(NamedTuple):
    """Owner and description of a job. uid: -1 if unknown. Unknown texts are empty."""

    uid: int = -1
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""


class JobProcesses:
    """The processes of jobs, and a cache of the identity of each job.

    The environment is under the user's control: it is read once, and only affects its own job. A
    thread reads it: the read hangs if the process has mapped its memory from a FUSE file.
    """

    def __init__(self, *, reads_environment: bool = True) -> None:
        self._reads_environment = reads_environment
        self._directories: dict[int, list[JobDirectory]] = {}
        self._known: dict[int, JobIdentity] = {}
        self._tries: dict[int, int] = {}
        self._reading: dict[int, BackgroundCall[dict[str, str]]] = {}

    def begin(self, node: Node, jobs: set[int]) -> None:
        """List the jobs' directories for one reading; forget jobs that are not in `jobs`."""
        self._directories = {}
        try:
            directories = job_directories(node, _CONTROLLERS)
        except CcagentError:
            directories = []
        for each in directories:
            of_job = self._directories.setdefault(each.job, [])
            if not of_job or of_job[0].controller == each.controller:
                of_job.append(each)
        self._known = {job: known for job, known in self._known.items() if job in jobs}
        self._tries = {job: tries for job, tries in self._tries.items() if job in jobs}
        self._reading = {job: call for job, call in self._reading.items() if job in jobs}

    def of(self, node: Node, job: int) -> tuple[tuple[int, ...], JobIdentity]:
        """Return the sorted process ids of a job, and its identity."""
        directories = self._directories.get(job, [])
        pids: list[int] = []
        for each in directories:
            pids += _list_processes(node, each)
        pids.sort()
        known = self._known.get(job)
        if known is None:
            known = self._identify(node, job, directories, pids)
        return tuple(pids), known

    def _identify(
        self, node: Node, job: int, directories: list[JobDirectory], pids: list[int]
    ) -> JobIdentity:
        uid = next((each.uid for each in directories if each.uid >= 0), -1)
        if uid < 0:
            uid = _find_owner(node, pids)
        user = node.user(uid) if uid >= 0 else ""
        texts = self._read_texts(node, job, uid, pids) if self._reads_environment else {}
        if texts is None:
            return JobIdentity(uid, user)
        identity = JobIdentity(uid, user, **texts)
        tries = self._tries[job] = self._tries.get(job, 0) + 1
        is_complete = uid >= 0 and (bool(texts) or not self._reads_environment)
        if is_complete or tries >= _TRIES:
            self._known[job] = identity
        return identity

    def _read_texts(self, node: Node, job: int, uid: int, pids: list[int]) -> dict[str, str] | None:
        """Return the texts from a job's environment; None while the read hangs."""
        call = self._reading.pop(job, None)
        if call is None:
            try:
                call = BackgroundCall(
                    lambda: _read_environment(node, uid, pids), "exporter-environment"
                )
            except CcagentError:
                return {}
            call.wait(_PATIENCE)
        if not call.is_done:
            self._reading[job] = call
            return None
        return call.result()


def _list_processes(node: Node, directory: JobDirectory) -> list[int]:
    """Return the process ids in the groups of steps and tasks, without slurmstepd's group."""
    found: list[int] = []
    waiting = [(directory.path, 0)]
    read = 0
    while waiting and read < _MOST_GROUPS:
        path, depth = waiting.pop()
        read += 1
        # In version 2 only leaf groups hold processes.
        if depth and (directory.controller != V2 or depth > 2):
            with contextlib.suppress(CcagentError, ValueError):
                found += map(int, node.read(f"{path}/cgroup.procs").split())
        if depth < _DEEPEST:
            with contextlib.suppress(CcagentError):
                names = node.directories(path)
                waiting += [(f"{path}/{n}", depth + 1) for n in names if _PART.fullmatch(n)]
    return found


def _find_owner(node: Node, pids: list[int]) -> int:
    """Return the uid of the first process that does not belong to root.

    Return 0 if all belong to root, -1 if no owner can be read.
    """
    found = -1
    for pid in pids:
        try:
            uid = node.owner(f"proc/{pid}")
        except CcagentError:
            continue
        if uid:
            return uid
        found = 0
    return found


def _read_environment(node: Node, uid: int, pids: list[int]) -> dict[str, str]:
    """Return the texts from the first process of the user whose environment has them; else {}."""
    asked = 0
    for pid in pids:
        if asked >= _ASKED_PROCESSES:
            break
        try:
            if node.owner(f"proc/{pid}") != uid:
                continue
            asked += 1
            found = parse_job_variables(node.read(f"proc/{pid}/environ"))
        except CcagentError:
            continue
        if found:
            return found
    return {}


def parse_job_variables(content: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ. Return account, partition and name of the job, if set."""
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        key = _VARIABLES.get(name)
        if key is not None and equals:
            text = value.decode("utf-8", "replace")[:_LONGEST_NAME]
            found.setdefault(key, text)
    return found
