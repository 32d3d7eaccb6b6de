"""Monitored applications of a node, Slurm jobs and virtual machines, and their resource use."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.agents.fast.kept_state import MonitoredMachine
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.log import logger
from ccagent.machine.cgroup.files import list_pids, parse_amount, parse_fields, parse_pids
from ccagent.machine.cgroup.jobs import MACHINE_SLICE, ROOT, V2, job_directories, machine_of_scope
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import parse_stat, parse_statm
from ccagent.machine.virtual_machines import MachineFinder, read_start

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ccagent.agents.fast.kept_state import KeptState
    from ccagent.agents.fast.messages.structures import MachineResult, StopMonitoring
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node

MOST_APPLICATIONS = 256
"""Maximum of monitored applications: a peer can name any number of machines."""

_ASKED = 50

_MOST_PROCESSES = 10_000
CPU_CONTROLLER, MEMORY_CONTROLLER = "cpuacct", "memory"
_USAGE = {b"usage_usec": ("cpu", 1000)}

Groups = dict[str, list[str]]
"""Directories of cgroups by controller of version 1, or by `v2`."""


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


class ResourceUsage(NamedTuple):
    """Use of cgroups or processes; None: unknown.

    cpu: total ns, of processes with awaited children. memory: B, charged to cgroups with their page
    cache, or resident pages of processes.
    """

    cpu: int | None
    memory: int | None


def list_tree(node: Node, process: int) -> list[int]:
    """Return the pids of a process and its visible descendants; empty if it has ended."""
    if read_start(node, process) is None:
        return []
    try:
        return _list_descendants(process, partial(_children, node))
    except NotHereError:  # a kernel without CONFIG_PROC_CHILDREN
        by_parent = _children_by_parent(node)
        return _list_descendants(process, lambda parent: by_parent.get(parent, []))


def _list_descendants(process: int, children: Callable[[int], Iterable[int]]) -> list[int]:
    tree = [process]
    seen = {process}
    for parent in tree:
        for child in children(parent):
            if child not in seen and len(tree) < _MOST_PROCESSES:
                seen.add(child)
                tree.append(child)
    return tree


def read_tree(node: Node, processes: list[int]) -> ResourceUsage:
    """Return the summed use of processes without ended ones; unknown without processes."""
    if not processes:
        return ResourceUsage(None, None)
    ticks = pages = 0
    for process in processes:
        try:
            stat = parse_stat(node.read_single(f"proc/{process}/stat"))
            pages += parse_statm(node.read_single(f"proc/{process}/statm")).resident
        except CcagentError:
            continue
        ticks += stat.all_ticks
    return ResourceUsage(ticks * 1_000_000_000 // node.clock_ticks, pages * node.page_size)


def _children(node: Node, process: int) -> list[int]:
    """Return the children of a process. Raise NotHereError if the kernel does not list them."""
    path = f"proc/{process}/task"
    children: list[int] = []
    for thread in node.list_names(path):
        try:
            children += parse_pids(node.read_single(f"{path}/{thread}/children"))
        except NotHereError:
            if thread == str(process) and read_start(node, process) is not None:
                raise
        except CcagentError:
            continue
    return children


def _children_by_parent(node: Node) -> dict[int, list[int]]:
    """Return the children of each process by reading all processes."""
    children: dict[int, list[int]] = {}
    for name in node.list("proc"):
        if name.isdigit():
            try:
                stat = parse_stat(node.read_single(f"proc/{name}/stat"))
            except CcagentError:
                continue
            children.setdefault(stat.ppid, []).append(int(name))
    return children


def parse_groups(content: bytes) -> dict[str, str]:
    """Return the paths in /proc/PID/cgroup by controller of version 1, and by `v2`."""
    paths: dict[str, str] = {}
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/") and "/.." not in parts[2]:
            for controller in parts[1].split(",") if parts[1] else (V2,):
                paths.setdefault(controller, parts[2])
    return paths


def find_own_groups(node: Node, process: int, tree: Collection[int]) -> Groups:
    """Return the cgroups that contain only this process and its descendants.

    A scope of libvirt belongs to its machine, whatever runs in it.
    """
    try:
        paths = parse_groups(node.read_single(f"proc/{process}/cgroup"))
    except CcagentError:
        return {}
    groups: Groups = {}
    for controller in (CPU_CONTROLLER, MEMORY_CONTROLLER, V2):
        path = paths.get(controller, "/")
        if path == "/":
            continue
        top = ROOT if controller == V2 else f"{ROOT}/{controller}"
        scope = _scope(path)
        directory = top + (scope or path)
        if scope or _holds_only(node, directory, tree):
            groups[controller] = [directory]
    return groups


def read_groups(node: Node, groups: Mapping[str, list[str]]) -> ResourceUsage:
    """Read the counters of cgroups; several directories of a controller are summed."""
    cpu = memory = None
    if CPU_CONTROLLER in groups:
        cpu = _sum(node, groups[CPU_CONTROLLER], "cpuacct.usage")
    elif V2 in groups:
        cpu = _sum(node, groups[V2], "cpu.stat")
    if MEMORY_CONTROLLER in groups:
        memory = _sum(node, groups[MEMORY_CONTROLLER], "memory.usage_in_bytes")
    elif V2 in groups:
        memory = _sum(node, groups[V2], "memory.current")
    return ResourceUsage(cpu, memory)


def _holds_only(node: Node, directory: str, tree: Collection[int]) -> bool:
    """Return whether a cgroup contains processes of the tree and no others."""
    is_used = False
    for count, process in enumerate(list_pids(node, directory)):
        if process not in tree or count > _MOST_PROCESSES:
            return False
        is_used = True
    return is_used


def _scope(path: str) -> str:
    """Return the part of a path up to the scope of a libvirt machine; empty without one."""
    parts = path.split("/")
    if len(parts) > 2 and parts[1] == MACHINE_SLICE and machine_of_scope(parts[2]):
        return "/".join(parts[:3])
    return ""


def _sum(node: Node, directories: Iterable[str], file: str) -> int | None:
    """Return the sum of a counter; None if it is unknown in one of the directories."""
    parse = _parse_usage if file == "cpu.stat" else parse_amount
    try:
        return sum(read_parsed(node, f"{directory}/{file}", parse) for directory in directories)
    except CcagentError:
        return None


def _parse_usage(content: bytes) -> int:
    usage = parse_fields(content, _USAGE).get("cpu")
    if usage is None:
        raise UnparsableError("no usage_usec")
    return usage
