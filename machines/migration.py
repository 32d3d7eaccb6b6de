"""Migration of a machine, with its steps before and after, and the truth after any failure.

After a migration that failed, or whose end nobody saw, libvirt is asked on both hosts. One running
machine and one definition are left, if it is certain which copy is dead: a paused copy beside a
running one, or a definition beside a moved machine.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.agents.fast.messages.structures import MachineOutcome
from ccagent.log import logger
from ccagent.machines.hypervisor import (
    HypervisorError,
    MigrationWay,
    attach_devices,
    detach_devices,
)
from ccagent.machines.operations import Phases

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import (
        EvacuateNode,
        MigrateMachine,
        MigratingMachine,
    )
    from ccagent.machines.hypervisor import Hypervisor, MachineState
    from ccagent.machines.operations import Operations

_AGAIN_AFTER = 1.0
_LOOKED_EVERY = 0.2
_GONE_AFTER = 2.0
"""Seconds until a machine that neither host knows is gone."""


class MachinePlace(NamedTuple):
    """Where a machine is. `here` is the source of a migration. state: libvirt's name of it."""

    place: Literal["here", "there", "nowhere", "both", "unknown"]
    state: str = ""
    details: str = ""


class SettledMachine:
    """A machine on the two hosts of a migration.

    uuid: of the machine before; empty if it is not known. was_on_target: the target had a
    definition before, which therefore stays; also if that is not known.
    """

    def __init__(self, name: str, source: Hypervisor, target: Hypervisor) -> None:
        self.uuid = ""
        self.was_on_target = True
        self._name, self._source, self._target = name, source, target
        self._begun = 0.0
        self._is_late = False

    def settle(self, limit: float, job_limit: float, *, is_offline: bool = False) -> MachinePlace:
        """Return the place of the machine, after ending what a failure left behind.

        limit: seconds to wait for daemons that do not answer and for changes. job_limit: seconds
        until a migration that still runs is aborted.
        """
        self._begun = time.monotonic()
        while True:
            elapsed = time.monotonic() - self._begun
            self._is_late = elapsed > limit
            reason = "its state does not settle"
            try:
                found = self._look(is_offline=is_offline, may_wait=elapsed < job_limit)
                if found is not None:
                    return found
                self._is_late = self._is_late and elapsed > job_limit
            except HypervisorError as error:
                reason = str(error)
            if self._is_late:
                return MachinePlace("unknown", "", f"its place is unknown: {reason}")
            time.sleep(_LOOKED_EVERY)

    def _look(self, *, is_offline: bool, may_wait: bool) -> MachinePlace | None:
        first, second = self._source.look(self._name), self._target.look(self._name)
        uuid = self.uuid or (first.uuid if first is not None else "")
        if second is not None and uuid and second.uuid != uuid:
            second = None  # another machine of this name
        if is_offline:
            return _find_definition(first, second)
        if any(each is not None and each.has_job for each in (first, second)):
            if not may_wait:
                self._source.abort(self._name)
            return None
        is_here = first is not None and first.is_active
        is_there = second is not None and second.is_active
        if first is not None and second is not None and is_here and is_there:
            return self._on_both(first, second)
        if first is not None and is_here:
            return self._on_source(first, second)
        if second is not None and is_there:
            return self._on_target(first, second)
        return self._on_neither(first, second)

    def _on_both(self, first: MachineState, second: MachineState) -> MachinePlace | None:
        # The target has the whole machine when it runs it, or has paused it for another reason
        # than its arrival: the copy on the source only waits for the end of its migration.
        has_arrived = second.state == "running" or (
            first.is_in_migration and not second.is_in_migration
        )
        if has_arrived and first.state == "paused":
            self._source.call(self._name, lambda domain: domain.destroy())
            return None
        if not self._is_late:
            return None
        if second.is_in_migration:
            self._target.call(self._name, lambda domain: domain.destroy())
            return None
        states = f"{first.state} and, on {self._target.name}, {second.state}"
        return MachinePlace("both", first.state, f"it is active on both hosts: {states}")

    def _on_source(self, first: MachineState, second: MachineState | None) -> MachinePlace | None:
        if first.is_in_migration:
            self._source.call(self._name, lambda domain: domain.resume())
            return None
        if second is not None and not self.was_on_target:
            self._target.undefine(self._name)
        return MachinePlace("here", first.state)

    def _on_target(self, first: MachineState | None, second: MachineState) -> MachinePlace | None:
        if second.is_in_migration:
            if self._is_late:
                self._target.call(self._name, lambda domain: domain.resume())
            return None
        if first is not None:
            if not second.is_persistent:
                self._target.define(self._source.definition(self._name))
            self._source.undefine(self._name)
        return MachinePlace("there", second.state)

    def _on_neither(
        self, first: MachineState | None, second: MachineState | None
    ) -> MachinePlace | None:
        if first is None and second is None:
            is_gone = time.monotonic() - self._begun > _GONE_AFTER
            return MachinePlace("nowhere", "", "it is on neither host") if is_gone else None
        if first is not None and second is not None and not self.was_on_target:
            self._target.undefine(self._name)
        return MachinePlace("nowhere", "shut off", "it runs on neither host")


def _find_definition(first: MachineState | None, second: MachineState | None) -> MachinePlace:
    if first is None:
        return MachinePlace("there", second.state) if second else MachinePlace("nowhere")
    if second is None:
        return MachinePlace("here", first.state)
    return MachinePlace("both", first.state, "it is defined on both hosts")


class MachineMigration:
    """A migration from this host to a destination, or back. Its methods never raise CcagentError.

    task: of the scheduler, about this machine and others. is_return: from the destination to this
    host, as the second half of an exchange.
    """

    def __init__(
        self,
        operations: Operations,
        task: MigrateMachine | EvacuateNode,
        machine: MigratingMachine,
        destination: str,
        *,
        is_return: bool = False,
    ) -> None:
        here, there = operations.here, operations.destinations[destination]
        self._source, self._target = (there, here) if is_return else (here, there)
        self._operations = operations
        self._allow = operations.settings.allow
        self._task = task
        self._machine = machine
        self._name = machine.name
        self._is_offline = task.migration_type == "offline"
        self._settled = SettledMachine(self._name, self._source, self._target)
        self._phases = Phases()
        self._notes: list[str] = []
        """Problems that do not change where the machine is."""
        self._is_hooked = False
        self._devices: list[str] = []
        """Ids of the PCI devices that the machine gets again."""

    def run(self) -> MachineOutcome:
        """Migrate the machine, and return the truth about it."""
        try:
            self._check()
            self._hook("suspend")
            self._detach()
        except HypervisorError as error:
            found = self._settle() if error.is_lost else MachinePlace("here")
            self._resume(found)
            return self._outcome(found, [str(error), found.details, *self._notes])
        attempts = 0
        while True:
            attempts += 1
            failure = self._try()
            if not failure:
                self._pin()
            found = self._settle()
            if not failure and found.place == "unknown":
                self._notes.append(found.details)
                found = MachinePlace("there")
            if found.place != "here" or attempts > (self._task.retries or 0):
                break
            logger.info("migfra: %s: attempt %d: %s", self._name, attempts, failure)
            time.sleep(_AGAIN_AFTER)
        if found.place == "there":
            if failure:
                self._pin()
            if self._task.measures_time and not self._is_offline:
                self._phases.durations |= self._target.statistics(self._name)
        self._resume(found)
        if found.place == "there":
            details = [str(attempts), *(f"moved; {note}" for note in self._notes)]
            details += [f"libvirt reported: {failure}"] if failure else []
        else:
            details = [failure, found.details, *self._notes]
        return self._outcome(found, details)

    def recover(self, note: str) -> MachineOutcome:
        """Return the outcome of a migration that another process has begun."""
        found = self._settle()
        self._is_hooked = True
        if found.place == "there":
            self._pin()
        self._resume(found)
        return self._outcome(found, [note, found.details, *self._notes])

    def _settle(self) -> MachinePlace:
        """Find where the machine is after a failure, or after another process began to move it."""
        return self._settled.settle(
            self._operations.settings.settle_limit.seconds,
            self._allow.migration_limit.seconds,
            is_offline=self._is_offline,
        )

    def _check(self) -> None:
        """Note what `settle` needs to know. Raise HypervisorError if the move is impossible."""
        state = self._source.require(self._name)
        if state.state != ("shut off" if self._is_offline else "running"):
            raise HypervisorError(f"Wrong domain state: {state.state}")
        if self._is_offline and self._machine.hook_processes:
            raise HypervisorError("pscom-hook-procs: the machine is off")
        other = self._target.look(self._name)
        if other is not None and (other.is_active or other.uuid != state.uuid):
            raise HypervisorError(
                f"operation failed: domain '{self._name}' is on {self._target.name} already"
            )
        self._settled.uuid, self._settled.was_on_target = state.uuid, other is not None

    def _try(self) -> str:
        """Migrate once; return why it failed, or ""."""
        settings = self._operations.settings
        way = MigrationWay(
            self._task.migration_type,
            uri=self._allow.migrate_uris.get(self._target.name, ""),
            bandwidth=self._allow.bandwidth,
            is_peer_to_peer=settings.peer_to_peer and self._source is self._operations.here,
            is_encrypted=settings.migration_tls,
            arrives_paused=bool(self._machine.vcpu_map),
        )
        limit = self._allow.migration_limit.seconds
        has_ended, is_late = threading.Event(), threading.Event()
        threading.Thread(target=self._abort_late, args=(has_ended, is_late), daemon=True).start()
        try:
            with self._phases.measure("migrate"):
                self._source.migrate(self._name, self._target, way)
        except HypervisorError as error:
            return f"{error}; aborted after {limit:g} s" if is_late.is_set() else str(error)
        finally:
            has_ended.set()
        return ""

    def _abort_late(self, has_ended: threading.Event, is_late: threading.Event) -> None:
        """Abort the migration after its limit, repeatedly: libvirt may not have begun it yet."""
        seconds = self._allow.migration_limit.seconds
        while not has_ended.wait(seconds):
            is_late.set()
            self._source.abort(self._name)
            seconds = _AGAIN_AFTER

    def _pin(self) -> None:
        """Pin a machine that has arrived, and let it go on; note problems."""
        vcpu_map = self._machine.vcpu_map
        if not vcpu_map or self._is_offline:
            return
        with self._phases.measure("repin"):
            try:
                self._target.pin(self._name, vcpu_map)
            except HypervisorError as error:
                self._notes.append(f"repin failed: {error}")
            try:
                if self._target.require(self._name).state == "paused":
                    self._target.call(self._name, lambda domain: domain.resume())
            except HypervisorError as error:
                self._notes.append(f"resume failed: {error}")

    def _hook(self, task: Literal["suspend", "resume"]) -> None:
        """Have pscom suspend or resume connections. Raise HypervisorError without answers."""
        count = self._machine.hook_processes
        if isinstance(count, int) and count:
            self._is_hooked = True
            with self._phases.measure(f"pscom-{task}-{self._name}"):
                self._operations.requests.hook(task, self._name, count, self._task.id)

    def _detach(self) -> None:
        """Take the PCI devices that the policy names: a machine with one can't be migrated."""
        if self._allow.pci_ids and not self._is_offline:
            limit = self._operations.settings.stop_limit.seconds
            with self._phases.measure("detach-pci-devs"):
                detach_devices(self._source, self._name, self._allow.pci_ids, limit, self._devices)

    def _resume(self, found: MachinePlace) -> None:
        """Attach devices again, and resume connections that may be suspended; note problems."""
        if self._devices and found.place in {"here", "there"}:
            try:
                with self._phases.measure("reattach-pci-devs"):
                    host = self._source if found.place == "here" else self._target
                    attach_devices(host, self._name, self._devices)
            except HypervisorError as error:
                self._notes.append(f"re-attach failed: {error}")
        try:
            if self._is_hooked:
                self._hook("resume")
        except HypervisorError as error:
            self._notes.append(str(error))

    def _outcome(self, found: MachinePlace, details: list[str]) -> MachineOutcome:
        """Return the outcome, with the state of the machine where it is now."""
        name, text, state = self._name, "; ".join(filter(None, details)), found.state
        where = {"here": self._source, "there": self._target}.get(found.place)
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
            process = (
                self._operations.find_process(name)
                if is_home
                else self._operations.requests.locate(where.name, name)
            )
        is_success = found.place == "there" and (is_active or self._is_offline)
        if found.place == "there" and not is_success:
            text = f"{text}; it does not run on {self._target.name}"
        return MachineOutcome(
            name=name,
            is_success=is_success,
            details=text,
            host=where.name if where is not None and (is_active or found.place == "there") else "",
            state=state,
            process_id=process,
            durations=self._phases.finish() if self._task.measures_time else {},
        )
