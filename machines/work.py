"""The work of a task by machine: also of an exchange, of an evacuation, and after a restart."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from ccagent.agents.fast.messages import structures as fast
from ccagent.errors import CcagentError
from ccagent.machine.background import BackgroundCall
from ccagent.machines.hypervisor import HypervisorError
from ccagent.machines.migration import MachineMigration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.machines.operations import Operations
    from ccagent.machines.policy import MachinePolicy

UNKNOWN = "unknown"
_NONE_LEFT = "No destination host left to evacuate to."
_RESTARTED = "the service was restarted during the task"


class Part(NamedTuple):
    """The work of a task for one machine. names: of the machines that it locks."""

    names: Sequence[str]
    work: Callable[[], fast.MachineOutcome]
    migrates: bool = False


def make_failure(name: str, reason: str) -> fast.MachineOutcome:
    """Return the outcome of a part without work."""
    return fast.MachineOutcome(name=name or UNKNOWN, is_success=False, details=reason)


def name_machines(task: fast.MachineTask) -> Sequence[str]:
    """Return the machines that a task names."""
    match task:
        case fast.StartMachines() | fast.OrderMachines():
            return [each.name or UNKNOWN for each in task.machines]
        case fast.MigrateMachine():
            return [task.machine.name]
        case fast.RepinMachine():
            return [task.name]
        case _:
            return []


class MachineWork:
    """Makes the parts of tasks. Those of a task that another process began find its result.

    Nothing is begun again.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def parts(
        self, task: fast.MachineTask, policy: MachinePolicy, *, is_begun: bool = False
    ) -> list[Part]:
        """Return the parts of a task. is_begun: another process has begun it.

        Those of an evacuation need libvirt.
        """
        operations = self._operations
        match task:
            case fast.StartMachines() | fast.OrderMachines():
                works: dict[str, tuple[Callable[[Any], fast.MachineOutcome], str]] = {
                    "start vm": (operations.start, "running"),
                    "stop vm": (operations.stop, ""),
                    "suspend vm": (partial(operations.change, "running", "suspend"), "paused"),
                    "resume vm": (partial(operations.change, "paused", "resume"), "running"),
                }
                work, state = works[task.task]
                if is_begun:
                    return [self._finding(each.name, state) for each in task.machines]
                return [
                    _failing(each.name, reason)
                    if (reason := policy.find_part_refusal(each))
                    else Part([each.name], partial(work, each))
                    for each in task.machines
                ]
            case fast.RepinMachine():
                repin = self._repinned if is_begun else operations.repin
                return [Part([task.name], partial(repin, task))]
            case fast.MigrateMachine():
                names = [each.name for each in (task.machine, task.swap_with) if each is not None]
                return [Part(names, partial(self._migrate, task, is_begun), migrates=True)]
            case fast.EvacuateNode():
                return self._evacuate(task, policy, is_begun)
            case _:
                return []

    def _finding(self, name: str, state: str) -> Part:
        """Return a part that succeeds if a machine has a state now; with "" if it is not active."""

        def find() -> fast.MachineOutcome:
            outcome = self._operations.outcome(name, is_success=True, details=_RESTARTED)
            is_as_wanted = outcome.state == state if state else not outcome.host
            return structs.replace(outcome, is_success=outcome.is_success and is_as_wanted)

        return Part([name], find)

    def _repinned(self, task: fast.RepinMachine) -> fast.MachineOutcome:
        try:
            pins = self._operations.here.read_pins(task.name)
            wanted = [frozenset(cpus) for cpus in task.vcpu_map]
            is_success, details = pins[: len(wanted)] == wanted, _RESTARTED
        except CcagentError as error:
            is_success, details = False, f"{_RESTARTED}; {error}"
        return self._operations.outcome(task.name, is_success=is_success, details=details)

    def _migrate(self, task: fast.MigrateMachine, is_begun: bool) -> fast.MachineOutcome:
        """Migrate a machine, or two at once in opposite directions: one outcome for both.

        For two, both hosts need free memory for the other's machine.
        """
        first = MachineMigration(self._operations, task, task.machine, task.destination)
        other = task.swap_with
        if other is None:
            return first.recover(_RESTARTED) if is_begun else first.run()
        second = MachineMigration(self._operations, task, other, task.destination, is_return=True)
        if is_begun:
            return join_swap(first.recover(_RESTARTED), second.recover(_RESTARTED))
        here, there = self._operations.here, self._operations.destinations[task.destination]
        try:
            here.require_memory(other.name, there)
            there.require_memory(task.machine.name, here)
        except HypervisorError as error:
            return self._operations.outcome(
                task.machine.name, is_success=False, details=f"swap: {error}"
            )
        call = BackgroundCall(second.run, "swap")
        outcome = first.run()
        call.wait(threading.TIMEOUT_MAX)
        return join_swap(outcome, call.result())

    def _evacuate(
        self, task: fast.EvacuateNode, policy: MachinePolicy, is_begun: bool
    ) -> list[Part]:
        """Return a migration for each active machine that the policy names."""
        here, destinations = self._operations.here, self._operations.destinations
        capacities: dict[str, int] = {}
        reason = _NONE_LEFT
        try:
            names = [name for name in here.list_active() if policy.allows_machine(name)]
        except CcagentError as error:
            return [_failing(UNKNOWN, str(error))]
        if is_begun:
            return [self._finding(name, "") for name in names]
        for name in dict.fromkeys(task.destinations):
            try:
                count = len(destinations[name].list_active())
                capacities[name] = destinations[name].count_cpus() - count
            except CcagentError as error:
                reason = str(error)
        if not capacities:
            return [_failing(UNKNOWN, reason)]
        parts: list[Part] = []
        for name, place in zip(names, choose_places(len(names), capacities, task), strict=True):
            machine = fast.MigratingMachine(name=name, hook_processes=task.hook_processes)
            if place:
                migration = MachineMigration(self._operations, task, machine, place)
                parts.append(Part([name], migration.run, migrates=True))
            else:
                parts.append(_failing(name, _NONE_LEFT))
        return parts


def _failing(name: str, reason: str) -> Part:
    """Return the part of a task that fails without work."""
    return Part([], partial(make_failure, name, reason))


def choose_places(count: int, capacities: dict[str, int], task: fast.EvacuateNode) -> list[str]:
    """Return a destination for each of `count` machines; "" for those without.

    capacities: CPUs less active machines, by destination, in the order of the task. `compact` fills
    one after the other, `scatter` takes turns, `auto` takes the one with the most capacity.
    """
    left, names = dict(capacities), [*capacities]
    places: list[str] = []
    for number in range(count):
        free = [name for name in names if left[name] > 0]
        if not free and task.is_overbooked:
            free = names
        if not free:
            places.append("")
            continue
        if task.mode == "scatter":
            turn = names[number % len(names) :] + names[: number % len(names)]
            place = next(name for name in turn if name in free)
        elif task.mode == "compact":
            place = free[0]
        else:
            place = max(free, key=lambda name: left[name])
        left[place] -= 1
        places.append(place)
    return places


def join_swap(first: fast.MachineOutcome, second: fast.MachineOutcome) -> fast.MachineOutcome:
    """Return the outcome of an exchange: of the first machine, with what became of the second."""
    status = "moved" if second.is_success else f"not moved: {second.details}"
    where = f", on {second.host}" if second.host else ""
    durations = {
        tag if tag == "overall" else f"{tag}-{name}": seconds
        for name, each in ((first.name, first.durations), (second.name, second.durations))
        for tag, seconds in each.items()
    }
    return structs.replace(
        first,
        is_success=first.is_success and second.is_success,
        details=f"{first.details}; {second.name}: {status}{where}",
        durations=durations,
    )
