"""Migration of a machine, with its steps before and after, and the truth after any failure."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.agents.fast.messages.structures import MachineOutcome
from ccagent.log import logger
from ccagent.machines.hypervisor import HypervisorError, MigrationWay
from ccagent.machines.phases import Phases
from ccagent.machines.settling import MachinePlace, SettledMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.fast.messages.structures import (
        HookProcesses,
        MigratingMachine,
        MigrationType,
    )
    from ccagent.machines.hypervisor import Hypervisor
    from ccagent.machines.operations import Operations
    from ccagent.machines.pscom import PscomHooks
    from ccagent.machines.settings import MigfraSettings

_AGAIN_AFTER = 1.0


class MigrationOrder(NamedTuple):
    """A migration of one machine from this host. task_id: id of the task, for pscom."""

    machine: MigratingMachine
    destination: str
    kind: MigrationType = "warm"
    retries: int = 0
    measures_time: bool = False
    task_id: str = ""


class Migrations:
    """Migrates machines between this host and destinations."""

    def __init__(
        self,
        settings: MigfraSettings,
        operations: Operations,
        hooks: PscomHooks,
        locate: Callable[[str, str], int],
    ) -> None:
        """Prepare. locate: returns the process of a machine on another host, by both names."""
        self._settings = settings
        self._locate = locate
        self._operations = operations
        self._hooks = hooks

    def migrate(self, order: MigrationOrder) -> MachineOutcome:
        """Migrate a machine away, and return the truth about it. Never raises CcagentError."""
        here = self._operations.here
        there = self._operations.destinations[order.destination]
        return self.move(order, here, there)

    def move(self, order: MigrationOrder, source: Hypervisor, target: Hypervisor) -> MachineOutcome:
        """Migrate a machine from one host to another."""
        phases = Phases()
        name = order.machine.name
        attempts = 0
        notes: list[str] = []
        try:
            uuid, was_on_target = self._check(order, source, target)
            self._hook("suspend", order.machine, order.task_id, phases)
        except HypervisorError as error:
            notes += self._resume_hooks(order, phases, is_needed="pscom" in str(error))
            found = self.settle(order, source, target) if error.is_lost else MachinePlace("here")
            details = [str(error), found.details, *notes]
            return self._outcome(order, phases, found, details, (source, target))
        while True:
            attempts += 1
            failure = self._try(order, source, target, phases)
            if not failure:
                notes += self._pin(order, target, phases)
            found = self.settle(order, source, target, uuid=uuid, was_on_target=was_on_target)
            if not failure and found.place == "unknown":
                notes.append(found.details)
                found = MachinePlace("there")
            if found.place != "here" or attempts > order.retries:
                break
            logger.info("migfra: %s: attempt %d: %s", name, attempts, failure)
            time.sleep(_AGAIN_AFTER)
        if found.place == "there":
            if failure:
                notes += self._pin(order, target, phases)
            self._add_statistics(order, target, phases)
        notes += self._resume_hooks(order, phases, is_needed=True)
        if found.place == "there":
            details = [str(attempts), *(f"moved; {note}" for note in notes)]
            if failure:
                details.append(f"libvirt reported: {failure}")
        else:
            details = [failure, found.details, *notes]
        return self._outcome(order, phases, found, details, (source, target))

    def recover(
        self, order: MigrationOrder, source: Hypervisor, target: Hypervisor, note: str
    ) -> MachineOutcome:
        """Return the outcome of a migration that another process has begun."""
        phases = Phases()
        found = self.settle(order, source, target)
        notes = self._resume_hooks(order, phases, is_needed=True)
        if found.place == "there":
            notes += self._pin(order, target, phases)
        return self._outcome(order, phases, found, [note, found.details, *notes], (source, target))

    def settle(
        self,
        order: MigrationOrder,
        source: Hypervisor,
        target: Hypervisor,
        *,
        uuid: str = "",
        was_on_target: bool = True,
    ) -> MachinePlace:
        """Find where a machine is after a failure, or after another process began to move it."""
        machine = SettledMachine(
            order.machine.name, source, target, uuid=uuid, was_on_target=was_on_target
        )
        return machine.settle(
            self._settings.settle_limit.seconds,
            self._settings.allow.migration_limit.seconds,
            is_offline=order.kind == "offline",
        )

    def _check(
        self, order: MigrationOrder, source: Hypervisor, target: Hypervisor
    ) -> tuple[str, bool]:
        """Return the uuid, and whether the target has a definition. Raise HypervisorError."""
        name = order.machine.name
        state = source.require(name)
        wanted = "shut off" if order.kind == "offline" else "running"
        if state.state != wanted:
            raise HypervisorError(f"Wrong domain state: {state.state}")
        if order.kind == "offline" and order.machine.hook_processes:
            raise HypervisorError("pscom-hook-procs: the machine is off")
        other = target.look(name)
        if other is not None and (other.is_active or other.uuid != state.uuid):
            raise HypervisorError(f"operation failed: domain '{name}' is on {target.name} already")
        return state.uuid, other is not None

    def _try(
        self, order: MigrationOrder, source: Hypervisor, target: Hypervisor, phases: Phases
    ) -> str:
        """Migrate once; return why it failed, or ""."""
        name = order.machine.name
        is_home = source is self._operations.here
        way = MigrationWay(
            order.kind,
            uri=self._settings.allow.migrate_uris.get(target.name, ""),
            bandwidth=self._settings.allow.bandwidth,
            is_peer_to_peer=self._settings.peer_to_peer and is_home,
            is_encrypted=self._settings.migration_tls,
            arrives_paused=bool(order.machine.vcpu_map) and order.kind != "offline",
        )
        limit = self._settings.allow.migration_limit.seconds
        timer = threading.Timer(limit, source.abort, (name,))
        timer.daemon = True
        timer.start()
        try:
            with phases.measure("migrate"):
                source.migrate(name, target, way)
        except HypervisorError as error:
            was_late = not timer.is_alive()
            return f"{error}; aborted after {limit:g} s" if was_late else str(error)
        finally:
            timer.cancel()
        return ""

    def _pin(self, order: MigrationOrder, target: Hypervisor, phases: Phases) -> list[str]:
        """Pin a machine that has arrived, and let it go on; return problems."""
        if not order.machine.vcpu_map or order.kind == "offline":
            return []
        problems: list[str] = []
        name = order.machine.name
        with phases.measure("repin"):
            try:
                target.pin(name, order.machine.vcpu_map)
            except HypervisorError as error:
                problems.append(f"repin failed: {error}")
            try:
                if target.require(name).state == "paused":
                    target.call(name, lambda domain: domain.resume())
            except HypervisorError as error:
                problems.append(f"resume failed: {error}")
        return problems

    def _hook(
        self,
        task: Literal["suspend", "resume"],
        machine: MigratingMachine,
        task_id: str,
        phases: Phases,
    ) -> None:
        count = _count_processes(machine.hook_processes)
        if count:
            with phases.measure(f"pscom-{task}-{machine.name}"):
                self._hooks.request(task, machine.name, count, task_id)

    def _resume_hooks(self, order: MigrationOrder, phases: Phases, *, is_needed: bool) -> list[str]:
        """Resume the connections, also after an error; return problems."""
        if is_needed:
            try:
                self._hook("resume", order.machine, order.task_id, phases)
            except HypervisorError as error:
                return [str(error)]
        return []

    def _add_statistics(self, order: MigrationOrder, target: Hypervisor, phases: Phases) -> None:
        if order.measures_time and order.kind != "offline":
            phases.durations |= target.statistics(order.machine.name)

    def _outcome(
        self,
        order: MigrationOrder,
        phases: Phases,
        found: MachinePlace,
        details: list[str],
        hosts: tuple[Hypervisor, Hypervisor],
    ) -> MachineOutcome:
        """Return the outcome, with the state of the machine where it is now.

        hosts: source and target of the migration.
        """
        name, text = order.machine.name, "; ".join(filter(None, details))
        state = found.state
        where = {"here": hosts[0], "there": hosts[1]}.get(found.place)
        is_active = False
        if where is not None:
            try:
                now = where.look(name)
            except HypervisorError as error:
                text = f"{text}; its state is unknown: {error}"
            else:
                state = now.state if now is not None else ""
                is_active = now is not None and now.is_active
        process = 0
        if where is not None and is_active:
            is_home = where is self._operations.here
            find = self._operations.find_process
            process = find(name) if is_home else self._locate(where.name, name)
        is_success = found.place == "there" and (is_active or order.kind == "offline")
        if found.place == "there" and not is_success:
            text = f"{text}; it does not run on {hosts[1].name}"
        return MachineOutcome(
            name=name,
            is_success=is_success,
            details=text,
            host=where.name if where is not None and (is_active or found.place == "there") else "",
            state=state,
            process_id=process,
            durations=phases.finish() if order.measures_time else {},
        )


def _count_processes(processes: HookProcesses) -> int:
    return processes if isinstance(processes, int) else 0
