"""Tasks that an earlier process has begun: their results by what is true now."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.agents.fast.messages import structures as fast
from ccagent.errors import CcagentError
from ccagent.machines.group_moves import join_swap, make_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.machines.migration import MigrationOrder, Migrations
    from ccagent.machines.operations import Operations

_NOTE = "the service was restarted during the task"


class Recovery:
    """Finds the results of interrupted tasks. Nothing is begun again."""

    def __init__(self, operations: Operations, migrations: Migrations) -> None:
        self._operations = operations
        self._migrations = migrations

    def works(
        self, task: fast.MachineTask
    ) -> Iterator[tuple[Sequence[str], Callable[[], fast.MachineOutcome]]]:
        """Yield the names of machines, and a function that returns their outcome."""
        match task:
            case fast.StartMachines():
                for part in task.machines:
                    yield [part.name], partial(self._by_state, part.name, "running")
            case fast.OrderMachines():
                state = {"stop vm": "", "suspend vm": "paused", "resume vm": "running"}[task.task]
                for order in task.machines:
                    yield [order.name], partial(self._by_state, order.name, state)
            case fast.RepinMachine():
                yield [task.name], partial(self._repinned, task)
            case fast.MigrateMachine():
                names = [each.name for each in (task.machine, task.swap_with) if each is not None]
                yield names, partial(self._migrated, task)
            case _:
                try:
                    names = self._operations.here.list_active()
                except CcagentError:
                    names = ["unknown"]
                for name in names:
                    yield [name], partial(self._by_state, name, "")

    def _by_state(self, name: str, state: str) -> fast.MachineOutcome:
        """Return success if a machine has a state now; with "" if it is not active."""
        outcome = self._operations.outcome(name, is_success=True, details=_NOTE)
        is_as_wanted = outcome.state == state if state else not outcome.host
        return structs.replace(outcome, is_success=outcome.is_success and is_as_wanted)

    def _repinned(self, task: fast.RepinMachine) -> fast.MachineOutcome:
        try:
            pins = self._operations.here.read_pins(task.name)
            wanted = [frozenset(cpus) for cpus in task.vcpu_map]
            is_success, details = pins[: len(wanted)] == wanted, _NOTE
        except CcagentError as error:
            is_success, details = False, f"{_NOTE}; {error}"
        return self._operations.outcome(task.name, is_success=is_success, details=details)

    def _migrated(self, task: fast.MigrateMachine) -> fast.MachineOutcome:
        order = make_order(task)
        outcome = self._settled(order)
        if task.swap_with is None:
            return outcome
        back = order._replace(machine=task.swap_with)
        return join_swap(outcome, self._settled(back, is_return=True))

    def _settled(self, order: MigrationOrder, *, is_return: bool = False) -> fast.MachineOutcome:
        here = self._operations.here
        there = self._operations.destinations[order.destination]
        ways = (there, here) if is_return else (here, there)
        return self._migrations.recover(order, *ways, note=_NOTE)
