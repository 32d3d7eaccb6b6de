"""The truth about a machine after a migration that failed, or whose end nobody saw.

libvirt is asked on both hosts. One running machine and one definition are left, if it is certain
which copy is dead: a paused copy beside a running one, or a definition beside a moved machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.machines.hypervisor import HypervisorError

if TYPE_CHECKING:
    from ccagent.machines.hypervisor import Hypervisor, MachineState

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
