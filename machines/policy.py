"""The policy of the node: tasks, machines, destinations and values that a scheduler may name.

A check reads the message and the settings alone: a refused task never reaches libvirt.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages import structures as fast
from ccagent.errors import ControlError, UnparsableError
from ccagent.machines.hypervisor import write_pci_id
from ccagent.net.signatures import SignatureCheck, split_signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machines.settings import MigfraSettings

# libvirt and QEMU take any text. These also fit into a topic, a path and a host name's place.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}", re.ASCII)
_HOOKS = "pscom-hook-procs: auto: not supported; send a number"

EVENTS: dict[str, fast.MachineEvent] = {
    "start vm": "vm started", "stop vm": "vm stopped", "suspend vm": "vm suspended",
    "resume vm": "vm resumed", "repin vm": "vm repinned", "migrate vm": "vm migrated",
    "evacuate node": "node evacuated", "quit": "quit",
}  # fmt: skip
"""Results by task."""


class MachinePolicy:
    """The policy in [migfra.allow]."""

    def __init__(self, settings: MigfraSettings) -> None:
        self._allow = settings.allow
        self._names = [re.compile(pattern, re.ASCII) for pattern in self._allow.machines]
        self._cpus = self._allow.allowed_cpus
        # A new policy accepts no signature that an older one may have accepted.
        self._signatures = SignatureCheck(time.time(), self._allow.signed_by)

    def identify(self, topic: str, payload: bytes) -> tuple[str, str]:
        """Return the key that signed a task, and why it is refused; empty if it is not."""
        if not self._signatures.keys:
            return "", ""
        headers, body = split_signed(payload)
        try:
            key = self._signatures.signer(topic, headers, body, time.time())
        except ControlError as error:
            return "", str(error)
        return key, "" if key else "signature: none of a key that this node's policy names"

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
        name = task.task
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
                    yield _HOOKS if machine.hook_processes == "auto" else ""
                if task.swap_with is not None and task.swap_with.name == task.machine.name:
                    yield "swap-with: the same machine"
            case fast.EvacuateNode():
                yield "" if task.destinations else "destinations: none"
                yield from map(self._refuse_destination, task.destinations)
                yield self._refuse_way(task)
                yield _HOOKS if task.hook_processes == "auto" else ""
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
        if part.xml and self._allow.xml != "checked":
            yield "xml: not accepted by this node; name a machine, or a template of the node"
        yield self._refuse_name(part.name)
        if part.template and self._allow.xml == "refuse":
            yield "template: not allowed by the policy of this node"
        if part.template and (part.xml or not _NAME.fullmatch(part.template)):
            yield "template: a name is needed, and no xml"
        if part.is_transient and not (part.template or part.xml):
            yield "transient: needs a template or xml"
        if part.xml:
            yield self._refuse_xml(part.xml)
        for each in map(write_pci_id, part.pci_ids):
            yield "" if each in self._allow.pci_ids else f"pci-ids: {each}: not in the policy"
        if part.memory is not None and not 0 < part.memory <= self._allow.most_memory:
            yield f"memory: {part.memory} KiB, the policy allows 1 to {self._allow.most_memory}"
        if part.vcpus is not None and not 0 < part.vcpus <= self._allow.max_vcpus:
            yield f"vcpus: {part.vcpus}, the policy allows 1 to {self._allow.max_vcpus}"

    def _refuse_xml(self, xml: str) -> str:
        from ccagent.agents.fast.messages.definitions import require_harmless  # seldom used

        allow = self._allow
        try:
            require_harmless(xml, allow.images, allow.networks, allow.most_memory, allow.max_vcpus)
        except UnparsableError as error:
            return str(error)
        return ""

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
