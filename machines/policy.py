"""The policy of the node: tasks, machines, destinations and values that a scheduler may name.

A check reads the message and the settings alone: a refused task never reaches libvirt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages import structures as fast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machines.settings import MigfraSettings

# libvirt and QEMU take any text. These also fit into a topic, a path and a host name's place.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}", re.ASCII)

TASK_NAMES: dict[type[fast.MachineTask], str] = {
    fast.StartMachines: "start vm",
    fast.MigrateMachine: "migrate vm",
    fast.RepinMachine: "repin vm",
    fast.EvacuateNode: "evacuate node",
    fast.QuitFramework: "quit",
}


EVENTS: dict[str, fast.MachineEvent] = {
    "start vm": "vm started",
    "stop vm": "vm stopped",
    "suspend vm": "vm suspended",
    "resume vm": "vm resumed",
    "repin vm": "vm repinned",
    "migrate vm": "vm migrated",
    "evacuate node": "node evacuated",
    "quit": "quit",
}
"""Results by task."""


def task_name(task: fast.MachineTask) -> str:
    """Return the name of a task in messages and in the policy."""
    return task.task if isinstance(task, fast.OrderMachines) else TASK_NAMES[type(task)]


class MachinePolicy:
    """The policy in [migfra.allow]."""

    def __init__(self, settings: MigfraSettings) -> None:
        self._allow = settings.allow
        self._names = [re.compile(pattern, re.ASCII) for pattern in self._allow.machines]
        self._cpus = self._allow.allowed_cpus

    def allows_machine(self, name: str) -> bool:
        """Return whether a machine exists for schedulers."""
        return bool(_NAME.fullmatch(name)) and any(each.fullmatch(name) for each in self._names)

    def find_refusal(self, task: fast.MachineTask) -> str:
        """Return why a whole task is refused; empty if its parts may be looked at."""
        return next(filter(None, self._refuse_task(task)), "")

    def find_part_refusal(self, part: fast.MachineConfiguration | fast.MachineOrder) -> str:
        """Return why a part of a task is refused; empty if it is allowed."""
        if isinstance(part, fast.MachineOrder):
            return next(filter(None, self._refuse_order(part)), "")
        return next(filter(None, self._refuse_configuration(part)), "")

    def _refuse_task(self, task: fast.MachineTask) -> Iterator[str]:
        name = task_name(task)
        if name == "quit":
            yield "quit: this service is stopped by its node only"
        if task.refused:
            yield f"{', '.join(task.refused)}: not accepted by this node"
        if name not in self._allow.tasks:
            yield f"{name}: not allowed by the policy of this node"
        match task:
            case fast.MigrateMachine():
                yield self._refuse_destination(task.destination)
                yield self._refuse_way(task)
                for machine in filter(None, (task.machine, task.swap_with)):
                    yield self._refuse_name(machine.name)
                    yield self._refuse_map(machine.vcpu_map)
                    yield _refuse_hook(machine.hook_processes)
                if task.swap_with is not None and task.swap_with.name == task.machine.name:
                    yield "swap-with: the same machine"
            case fast.EvacuateNode():
                yield "" if task.destinations else "destinations: none"
                yield from map(self._refuse_destination, task.destinations)
                yield self._refuse_way(task)
                yield _refuse_hook(task.hook_processes)
            case fast.RepinMachine():
                yield self._refuse_name(task.name)
                yield self._refuse_map(task.vcpu_map) if task.vcpu_map else "vcpu-map: missing"
            case _:
                pass

    def _refuse_name(self, name: str) -> str:
        if self.allows_machine(name):
            return ""
        return f"Domain not found: no domain with matching name '{name}' for schedulers"

    def _refuse_order(self, order: fast.MachineOrder) -> Iterator[str]:
        yield self._refuse_name(order.name)
        if order.is_forced and not self._allow.force:
            yield "force: not allowed by the policy of this node"
        if order.is_undefined and not self._allow.undefine:
            yield "undefine: not allowed by the policy of this node"

    def _refuse_configuration(self, part: fast.MachineConfiguration) -> Iterator[str]:
        if part.xml:
            yield "xml: not accepted by this node; name a machine, or a template of the node"
        yield self._refuse_name(part.name)
        if part.template and self._allow.xml != "templates":
            yield "template: not allowed by the policy of this node"
        if part.template and not _NAME.fullmatch(part.template):
            yield "template: a name is needed"
        if part.is_transient and not part.template:
            yield "transient: needs a template"
        if part.pci_ids:
            yield "pci-ids: not supported"
        if part.memory is not None and not 0 < part.memory <= self._allow.most_memory:
            yield f"memory: {part.memory} KiB, the policy allows 1 to {self._allow.most_memory}"
        if part.vcpus is not None and not 0 < part.vcpus <= self._allow.max_vcpus:
            yield f"vcpus: {part.vcpus}, the policy allows 1 to {self._allow.max_vcpus}"

    def _refuse_destination(self, name: str) -> str:
        if name in self._allow.destinations:
            return ""
        return "destination: not one of the destinations of this node's policy"

    def _refuse_map(self, vcpu_map: fast.VcpuMap) -> str:
        for cpus in vcpu_map:
            if not cpus:
                return "vcpu-map: no CPU for a virtual CPU"
            if wrong := sorted(set(cpus) - self._cpus):
                return f"vcpu-map: CPU {wrong[0]} is not allowed by the policy of this node"
        return ""

    def _refuse_way(self, task: fast.MigrateMachine | fast.EvacuateNode) -> str:
        if task.uses_rdma:
            return "rdma-migration: not supported"
        if task.retries is not None and task.retries > self._allow.retries:
            return f"retry-counter: {task.retries}, the policy allows {self._allow.retries}"
        return ""


def _refuse_hook(processes: fast.HookProcesses) -> str:
    return "pscom-hook-procs: auto: not supported; send a number" if processes == "auto" else ""
