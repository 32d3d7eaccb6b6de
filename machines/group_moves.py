"""Exchange of two machines, and evacuation of all machines of this host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.agents.fast.messages.structures import MachineOutcome, MigratingMachine
from ccagent.machines.hypervisor import HypervisorError
from ccagent.machines.migration import MigrationOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.fast.messages.structures import EvacuateNode, MigrateMachine
    from ccagent.machines.hypervisor import Hypervisor
    from ccagent.machines.migration import Migrations
    from ccagent.machines.operations import Operations
    from ccagent.machines.policy import MachinePolicy

_SPARE_MEMORY = 64 * 1024 * 1024
NONE_LEFT = "No destination host left to evacuate to."


def make_order(task: MigrateMachine) -> MigrationOrder:
    """Return the migration of a task, without the exchange."""
    return MigrationOrder(
        task.machine,
        task.destination,
        task.migration_type,
        task.retries or 0,
        measures_time=task.measures_time,
        task_id=task.id,
    )


class GroupMoves:
    """Moves several machines for one task."""

    def __init__(self, operations: Operations, migrations: Migrations) -> None:
        self._operations = operations
        self._migrations = migrations

    def swap(self, task: MigrateMachine, other: MigratingMachine) -> MachineOutcome:
        """Migrate two machines at once in opposite directions; return one outcome for both.

        Both hosts need free memory for the other's machine.
        """
        here = self._operations.here
        there = self._operations.destinations[task.destination]
        order = make_order(task)
        back = order._replace(machine=other, destination=here.name)
        try:
            _require_memory(here, there, other.name)
            _require_memory(there, here, task.machine.name)
        except HypervisorError as error:
            return self._operations.outcome(
                task.machine.name, is_success=False, details=f"swap: {error}"
            )
        returned: list[MachineOutcome] = []
        thread = threading.Thread(
            target=lambda: returned.append(self._migrations.move(back, there, here)), daemon=True
        )
        thread.start()
        outcome = self._migrations.migrate(order)
        thread.join()
        return join_swap(outcome, returned[0])

    def plan(self, task: EvacuateNode, policy: MachinePolicy) -> Iterator[MigrationOrder | str]:
        """Yield a migration for each active machine that the policy names.

        A machine without a place is yielded by its name. Raise HypervisorError if this host or all
        destinations do not answer.
        """
        machines = [
            name for name in self._operations.here.list_active() if policy.allows_machine(name)
        ]
        capacities: dict[str, int] = {}
        reason = NONE_LEFT
        for name in dict.fromkeys(task.destinations):
            destination = self._operations.destinations[name]
            try:
                capacities[name] = destination.count_cpus() - len(destination.list_active())
            except HypervisorError as error:
                reason = str(error)
        if not capacities:
            raise HypervisorError(reason)
        places = choose_places(len(machines), capacities, task)
        for name, place in zip(machines, places, strict=True):
            if not place:
                yield name
                continue
            yield MigrationOrder(
                MigratingMachine(name=name, hook_processes=task.hook_processes),
                place,
                task.migration_type,
                task.retries or 0,
                measures_time=task.measures_time,
                task_id=task.id,
            )


def choose_places(count: int, capacities: dict[str, int], task: EvacuateNode) -> list[str]:
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


def join_swap(first: MachineOutcome, second: MachineOutcome) -> MachineOutcome:
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


def _require_memory(host: Hypervisor, source: Hypervisor, name: str) -> None:
    """Raise HypervisorError unless a host has free memory for a machine of another."""
    needed = source.memory_of(name) + _SPARE_MEMORY
    free = host.free_memory()
    if free < needed:
        raise HypervisorError(f"{host.name} has {free} B of free memory, {name} needs {needed}")
