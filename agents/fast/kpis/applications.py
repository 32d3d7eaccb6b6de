"""Monitored applications of a node: Slurm jobs and virtual machines."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.agents.fast.kpis.processes import CPU_CONTROLLER, MEMORY_CONTROLLER, Groups
from ccagent.agents.fast.session.kept_state import MonitoredMachine
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.virtual_machines import MachineFinder, read_start

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import MachineResult, StopMonitoring
    from ccagent.agents.fast.session.kept_state import KeptState
    from ccagent.agents.fast.settings import FastSettings
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
    """Finds the applications of the node, and keeps which are not monitored or suspended."""

    def __init__(self, state: KeptState, settings: FastSettings) -> None:
        self._state = state
        self._settings = settings
        self._starts: dict[str, int | None] = {}
        self._finder = MachineFinder(settings.run_directory, has_others=settings.machines == "all")

    def list_monitored(self, node: Node) -> list[MonitoredApplication]:
        """Return the monitored applications."""
        machines = [
            MonitoredApplication("", machine.process_id, machine.name, machine.start)
            for machine in self.find_machines(node)
            if not machine.is_stopped
        ]
        jobs = self._jobs(node) if self._settings.jobs else []
        return [*jobs, *machines][:MOST_APPLICATIONS]

    def job_ids(self, node: Node) -> list[str]:
        """Return the Slurm jobs on this node."""
        return [*self._groups(node)][:MOST_APPLICATIONS]

    def stop(self, node: Node, task: StopMonitoring) -> str:
        """Stop monitoring the application of a task; return an error, or ""."""
        state = self._state
        has_stopped = False
        for index, machine in enumerate(self.find_machines(node)):
            if not machine.is_stopped and _is_meant(machine, task):
                state.machines[index] = structs.replace(machine, is_stopped=True)
                has_stopped = True
        job = task.job_id
        if job and job in self._groups(node):
            has_stopped = True
            if job not in state.stopped_jobs:
                state.stopped_jobs.append(job)
        if has_stopped:
            return ""
        process = f" with process {task.process_id}" if task.process_id else ""
        return f"job {job or '(none)'}{process} is not monitored on this node"

    def follow(self, result: MachineResult) -> None:
        """Note what the migration framework did. Machines are found, not believed."""
        self._finder.look()
        if result.event not in {"vm started", "vm resumed", "vm suspended"}:
            return
        names = {outcome.name for outcome in result.machines if outcome.is_success}
        self._state.machines = [
            structs.replace(machine, is_suspended=result.event == "vm suspended")
            if machine.name in names
            else machine
            for machine in self._state.machines
        ]

    def find_machines(self, node: Node) -> list[MonitoredMachine]:
        """Return the machines on this node, at most 256, with what is known of them."""
        known = {(each.name, each.process_id, each.start): each for each in self._state.machines}
        found = [] if self._settings.machines == "none" else self._finder.find(node)
        if len(found) > MOST_APPLICATIONS:
            logger.error(
                "agent fast: %d machines; the first %d are monitored", len(found),
                MOST_APPLICATIONS, key="fast too many machines",
            )  # fmt: skip
        self._state.machines = [
            known.get(machine, MonitoredMachine(**machine._asdict()))
            for machine in found[:MOST_APPLICATIONS]
        ]
        return self._state.machines

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


def _first_start(node: Node, groups: Groups) -> int | None:
    """Return the start of the oldest running process of a job, in ticks since boot."""
    # Every controller has the same processes.
    directories = next(iter(groups.values()), list[str]())
    starts = [
        read_start(node, process)
        for directory in directories
        for process in islice(list_pids(node, directory), _ASKED)
    ]
    return min((start for start in starts if start is not None), default=None)
