"""Monitored applications of a node: Slurm jobs and virtual machines."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.fast.kpis.processes import (
    CPU_CONTROLLER,
    MEMORY_CONTROLLER,
    Groups,
    machine_scopes,
    read_start,
)
from ccagent.agents.fast.session.kept_state import MonitoredMachine
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import job_directories

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import MachineResult, StopMonitoring
    from ccagent.agents.fast.session.kept_state import KeptState
    from ccagent.machine.node import Node

MOST_APPLICATIONS = 256
"""Maximum of monitored applications: a peer can name any number of machines."""

_ASKED = 50


class MonitoredApplication(NamedTuple):
    """An application: a Slurm job with its cgroups, or a machine with its process.

    start: ticks since boot, None if it is unknown.
    """

    job_id: str = ""
    process_id: int = 0
    vm_name: str = ""
    start: int | None = None
    groups: Groups = {}


class Applications:
    """Keeps the list of monitored applications, changed by messages."""

    def __init__(self, state: KeptState, *, has_jobs: bool = True) -> None:
        self._state = state
        self._has_jobs = has_jobs
        self._starts: dict[str, int | None] = {}

    def list_monitored(self, node: Node) -> list[MonitoredApplication]:
        """Return the monitored applications; forget ended machines."""
        self._forget_gone(node)
        machines = [
            MonitoredApplication("", machine.process_id, machine.name, machine.start)
            for machine in self._state.machines
        ]
        jobs = self._jobs(node) if self._has_jobs else []
        return [*jobs, *machines][:MOST_APPLICATIONS]

    def job_ids(self, node: Node) -> list[str]:
        """Return the Slurm jobs on this node."""
        return [*self._groups(node)][:MOST_APPLICATIONS]

    def stop(self, node: Node, task: StopMonitoring) -> str:
        """Stop monitoring the application of a task; return an error, or ""."""
        state = self._state
        kept = [machine for machine in state.machines if not _is_meant(machine, task)]
        has_stopped = len(kept) < len(state.machines)
        state.machines = kept
        job = task.job_id
        if job and job in self._groups(node):
            has_stopped = True
            if job not in state.stopped_jobs:
                state.stopped_jobs.append(job)
        if has_stopped:
            return ""
        process = f" with process {task.process_id}" if task.process_id else ""
        return f"job {job or '(none)'}{process} is not monitored on this node"

    def follow(self, node: Node, result: MachineResult) -> None:
        """Add machines that the migration framework started; remove stopped ones."""
        for outcome in result.machines:
            if not outcome.is_success:
                continue
            if result.event == "vm stopped":
                self._remove(outcome.name)
            elif result.event in {"vm started", "vm resumed", "vm suspended"}:
                is_suspended = result.event == "vm suspended"
                self._add(node, outcome.name, outcome.process_id, is_suspended=is_suspended)
            elif result.event == "vm migrated":
                # The process is at the destination. The destination may be this node.
                self._remove(outcome.name)
                if _is_machine(node, outcome.process_id, outcome.name):
                    self._add(node, outcome.name, outcome.process_id, is_suspended=False)

    def _add(self, node: Node, name: str, process: int, *, is_suspended: bool) -> None:
        state = self._state
        known = next((machine for machine in state.machines if machine.name == name), None)
        process = process or (known.process_id if known else _find_machine(node, name))
        start = read_start(node, process) if process else None
        if start is None:
            logger.warning(
                "agent fast: machine %s: no process %d on this node; not monitored", name, process,
                key="fast machine without process",
            )  # fmt: skip
            return
        if known is None and len(state.machines) >= MOST_APPLICATIONS:
            logger.error(
                "agent fast: machine %s: not monitored: %d machines already", name,
                MOST_APPLICATIONS, key="fast too many machines",
            )  # fmt: skip
            return
        self._remove(name)
        state.machines.append(
            MonitoredMachine(name=name, process_id=process, start=start, is_suspended=is_suspended)
        )

    def _remove(self, name: str) -> None:
        self._state.machines = [machine for machine in self._state.machines if machine.name != name]

    def _forget_gone(self, node: Node) -> None:
        for machine in [*self._state.machines]:
            if read_start(node, machine.process_id) != machine.start:
                process = machine.process_id
                logger.info("agent fast: machine %s: process %d has ended", machine.name, process)
                self._remove(machine.name)

    def _jobs(self, node: Node) -> list[MonitoredApplication]:
        groups = self._groups(node)
        state = self._state
        if state.stopped_jobs:
            state.stopped_jobs = [job for job in state.stopped_jobs if job in groups]
        self._starts = {job: start for job, start in self._starts.items() if job in groups}
        jobs: list[MonitoredApplication] = []
        for job, paths in groups.items():
            if job in state.stopped_jobs:
                continue
            if self._starts.get(job) is None:
                self._starts[job] = _first_start(node, paths)
            jobs.append(MonitoredApplication(job, 0, "", self._starts[job], paths))
        return jobs

    def _groups(self, node: Node) -> dict[str, Groups]:
        """Return the cgroups of Slurm jobs, by job."""
        by_job: dict[str, Groups] = {}
        try:
            directories = job_directories(node, (MEMORY_CONTROLLER, CPU_CONTROLLER))
        except CcagentError:
            return {}
        for directory in directories:
            groups = by_job.setdefault(str(directory.job), {})
            groups.setdefault(directory.controller, []).append(directory.path)
        return by_job


def _is_meant(machine: MonitoredMachine, task: StopMonitoring) -> bool:
    """Return whether a task names a machine: by process, or by name as job id."""
    if task.process_id:
        return machine.process_id == task.process_id
    return machine.name == task.job_id


def _find_machine(node: Node, name: str) -> int:
    """Return the process of a libvirt machine; 0 if none has this name."""
    directories = machine_scopes(node).get(name, [])
    return next((pid for directory in directories for pid in list_pids(node, directory)), 0)


def _is_machine(node: Node, process: int, name: str) -> bool:
    """Return whether a process of this node runs the machine of this name."""
    if not process:
        return False
    try:
        words = node.read(f"proc/{process}/cmdline", limit=1024 * 1024).split(b"\0")
    except CcagentError:
        return False
    wanted = name.encode("utf-8", "replace")
    return any(wanted in {part.rpartition(b"=")[2] for part in word.split(b",")} for word in words)


def _first_start(node: Node, groups: Groups) -> int | None:
    """Return the start of the oldest running process of a job, in ticks since boot."""
    directories = next(
        iter(groups.values()), list[str]()
    )  # every controller has the same processes
    starts = [
        read_start(node, process)
        for directory in directories
        for process in islice(list_pids(node, directory), _ASKED)
    ]
    return min((start for start in starts if start is not None), default=None)
