"""Owners of cores: jobs and virtual machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.fast.kpis.control_groups import group_processes, machine_scopes
from ccagent.agents.fast.kpis.process_tree import read_start
from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.fast.session.kept_state import MonitoredMachine
    from ccagent.machine.node import Node

_CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_ALLOWED = re.compile(rb"^Cpus_allowed_list:\s*([0-9,-]+)$", re.MULTILINE)
_VCPU = re.compile(rb"CPU [0-9]+/")


def find_owners(
    node: Node, machines: Iterable[MonitoredMachine], cpus: Iterable[int]
) -> dict[int, str]:
    """Return the owner of each owned core, by core.

    A job that is not confined to cores owns all of them. A suspended machine owns none: a scheduler
    suspends machines to free cores for a measurement.
    """
    every = [*cpus]
    owners: dict[int, str] = {}
    for job, cores in _job_cores(node).items():
        for core in cores or every:
            owners.setdefault(core, f"job {job}")
    suspended: set[int] = set()
    for machine in machines:
        if read_start(node, machine.process_id) != machine.start:
            continue  # the machine has ended, and another process may have its pid
        if machine.is_suspended:
            suspended.add(machine.process_id)
            continue
        for core in machine_cores(node, machine.process_id):
            owners.setdefault(core, f"machine {machine.name}")
    for name, directories in machine_scopes(node).items():
        process = next((each for place in directories for each in group_processes(node, place)), 0)
        if process and process not in suspended:
            for core in machine_cores(node, process):
                owners.setdefault(core, f"machine {name}")
    return owners


def machine_cores(node: Node, process: int) -> set[int]:
    """Return the allowed CPUs of a machine's virtual CPUs, or else of all its threads."""
    vcpus: set[int] = set()
    all_threads: set[int] = set()
    path = f"proc/{process}/task"
    try:
        threads = node.list(path)
    except CcagentError:
        return set()
    for thread in threads:
        try:
            match = _ALLOWED.search(node.read(f"{path}/{thread}/status"))
            cpus = set(parse_cpu_list(match[1])) if match is not None else set[int]()
            command = node.read_single(f"{path}/{thread}/comm")
        except CcagentError:
            continue
        all_threads |= cpus
        if _VCPU.match(command):
            vcpus |= cpus
    return vcpus or all_threads


def _job_cores(node: Node) -> dict[int, set[int]]:
    """Return the cores of each Slurm job; an empty set for a job that is not confined."""
    found: dict[int, set[int]] = {}
    for controllers in (("cpuset",), ("memory", "cpuacct", "freezer")):
        try:
            directories = job_directories(node, controllers)
        except CcagentError:
            continue
        for each in directories:
            cores = _cpuset(node, each.path) if controllers == ("cpuset",) else set[int]()
            found[each.job] = found.get(each.job, set()) | cores
    return found


def _cpuset(node: Node, directory: str) -> set[int]:
    for name in _CPUSETS:
        try:
            cores = read_parsed(node, f"{directory}/{name}", parse_cpu_list)
        except CcagentError:
            continue
        if cores:
            return set(cores)
    return set()
