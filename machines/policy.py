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
        name = task_name(task)
        if name == "quit":
            return "quit: this service is stopped by its node only"
        if task.refused:
            return f"{', '.join(task.refused)}: not accepted by this node"
        if name not in self._allow.tasks:
            return f"{name}: not allowed by the policy of this node"
        match task:
            case fast.MigrateMachine():
                return self._refuse_migration(task)
            case fast.EvacuateNode():
                return self._refuse_evacuation(task)
            case fast.RepinMachine():
                return self._refuse_name(task.name) or self._refuse_map(task.vcpu_map, needed=True)
            case _:
                return ""

    def find_part_refusal(self, part: fast.MachineConfiguration | fast.MachineOrder) -> str:
        """Return why a part of a task is refused; empty if it is allowed."""
        if isinstance(part, fast.MachineOrder):
            reasons = self._refuse_order(part)
        else:
            reasons = self._refuse_configuration(part)
        return next(reasons, "")

    def _refuse_name(self, name: str) -> str:
        if self.allows_machine(name):
            return ""
        return f"Domain not found: no domain with matching name '{name}' for schedulers"

    def _refuse_order(self, order: fast.MachineOrder) -> Iterator[str]:
        if reason := self._refuse_name(order.name):
            yield reason
        if order.is_forced and not self._allow.force:
            yield "force: not allowed by the policy of this node"
        if order.is_undefined and not self._allow.undefine:
            yield "undefine: not allowed by the policy of this node"

    def _refuse_configuration(self, part: fast.MachineConfiguration) -> Iterator[str]:
        if part.xml:
            yield "xml: not accepted by this node; name a machine, or a template of the node"
        if reason := self._refuse_name(part.name):
            yield reason
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

    def _refuse_map(self, vcpu_map: fast.VcpuMap, *, needed: bool = False) -> str:
        if needed and not vcpu_map:
            return "vcpu-map: missing"
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

    def _refuse_migration(self, task: fast.MigrateMachine) -> str:
        machines = [task.machine, *([task.swap_with] if task.swap_with else [])]
        reasons = [self._refuse_destination(task.destination), self._refuse_way(task)]
        for machine in machines:
            reasons += [
                self._refuse_name(machine.name),
                self._refuse_map(machine.vcpu_map),
                _refuse_hook(machine.hook_processes),
            ]
        if task.swap_with is not None and task.swap_with.name == task.machine.name:
            reasons.append("swap-with: the same machine")
        return next(filter(None, reasons), "")

    def _refuse_evacuation(self, task: fast.EvacuateNode) -> str:
        reasons = [self._refuse_destination(name) for name in task.destinations]
        if not task.destinations:
            reasons.append("destinations: none")
        reasons += [self._refuse_way(task), _refuse_hook(task.hook_processes)]
        return next(filter(None, reasons), "")


def _refuse_hook(processes: fast.HookProcesses) -> str:
    return "pscom-hook-procs: auto: not supported; send a number" if processes == "auto" else ""
