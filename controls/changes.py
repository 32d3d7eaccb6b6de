"""Setting and restoring values. The old value is on disk before the machine is changed.

The steps of a change: read the old value, save it (fsync), write, read back, save the value read
back. After a crash at any point, either the old value is in effect, or the next start finds the
saved change.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.controls.journal import Action, Audit, Change, Entry, Journal
from ccagent.errors import CcagentError, ControlError, NotHereError
from ccagent.log import logger
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.node import BOOT_ID, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ccagent.controls.control import Catalogue, Feature


_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0


class Order(NamedTuple):
    """A checked request to set a value. text: canonical value. lease: seconds, 0: none."""

    feature: Feature
    device: str
    text: str
    sender: str
    lease: float = 0.0
    job: int = 0

    @property
    def name(self) -> str:
        """The full name of the control."""
        return self.feature.control.full_name


class Changes:
    """The changes in effect. Any thread may call it. A hanging write blocks only its device.

    catalogue: the features of the machine; replaced at a reload.
    """

    def __init__(self, node: Node, catalogue: Catalogue, journal: Journal, audit: Audit) -> None:
        self._node = node
        self.catalogue = catalogue
        self._journal = journal
        self._audit = audit
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._pauses: dict[int, tuple[float, float]] = {}
        self._boot = node.read_text(BOOT_ID)
        self._is_closed = False

    def close(self) -> None:
        """Refuse all further requests. Values can still be restored."""
        self._is_closed = True

    def all(self) -> list[Change]:
        """Return the changes in effect, oldest first."""
        return self._journal.all()

    def set(self, order: Order) -> str:
        """Set a value and verify it. Return the value read back. Raise CcagentError."""
        resource = order.feature.resource(order.device)
        with self._reserved(resource, order.name):
            if self._is_closed:
                raise ControlError(f"{order.name}: nothing is set: the service stops")
            return self._set(order, resource)

    def _set(self, order: Order, resource: str) -> str:
        feature, device = order.feature, order.device
        now = feature.read(device)
        earlier = next((c for c in self.all() if c.resource == resource), None)
        refusal = feature.limits(device).refusal(order.text)
        if refusal:
            raise ControlError(f"{order.name}: out of the machine's range: {refusal}")
        change = Change(
            number=self._journal.next_number() if earlier is None else earlier.number,
            control=order.name,
            device=device,
            resource=resource,
            before=now if earlier is None else earlier.before,
            requested=order.text,
            sender=order.sender,
            time=self._node.clock.time(),
            boot=self._boot,
            expires=self._node.clock.uptime() + order.lease if order.lease else 0.0,
            job=order.job,
        )
        # The machine may have rounded the same earlier request.
        is_rounded = earlier is not None and (earlier.requested, earlier.after) == (order.text, now)
        if now == order.text or is_rounded:
            # The value is already in effect: at most the lease changes.
            if earlier is not None:
                renewed = msgspec.structs.replace(
                    change, after=now, time=earlier.time, boot=earlier.boot
                )
                self._journal.add(renewed)
                self._pauses.pop(earlier.number, None)
                self._record("renewed", renewed, lease=order.lease)
            return now
        self._journal.add(change)
        try:
            feature.write(device, order.text)
            after = feature.read(device)
        except Exception as error:
            self._undo(change, order, str(error))
            raise
        if not feature.matches(order.text, after):
            reason = f"{order.text} was written, {after} is read back"
            kept = self._undo(change, order, reason)
            raise ControlError(f"{order.name}: {reason}; {kept}")
        self._pauses.pop(change.number, None)
        confirmed = msgspec.structs.replace(change, after=after)
        self._confirm(confirmed)
        self._record("set", confirmed, lease=order.lease)
        return after

    def _confirm(self, change: Change) -> None:
        """Save the value read back. If that fails, the value stays set and remembered."""
        try:
            if change.after == change.before:
                self._end(change.number)
            else:
                self._journal.add(change)
        except ControlError as error:
            logger.error("controls: %s is set, but not confirmed on disk: %s; a restart puts it"
                         " back", change.control, error.__cause__ or error)  # fmt: skip

    def restore(self, change: Change, by: str) -> bool:
        """Restore the old value. Return False if that failed and is tried again later."""
        try:
            with self._reserved(change.resource, change.control):
                current = self._journal.find(change.number)
                if current is None:
                    return True
                self._put_back(current, by)
        except Exception as error:  # noqa: BLE001 - whatever failed, it is tried again
            if not isinstance(error, CcagentError):
                logger.exception("controls: putting %s back failed", change.control)
            first = change.number not in self._pauses
            self._put_off(change.number)
            if first:
                self._record("restore-failed", change, by, str(error))
            return False
        self._pauses.pop(change.number, None)
        return True

    def recover(self, is_allowed: Callable[[str], bool]) -> None:
        """Handle the changes of a service that ended by a crash or power failure.

        A change without confirmed write is restored at once, and so is a change that the policy no
        longer allows. All others keep their lease. After a boot the kernel has default values. Then
        only hardware that kept the changed value is restored.
        """
        self.recover_after_boot()
        for change in reversed(self.all()):
            if change.boot != self._boot:
                continue
            if change.after is None:
                self.restore(change, "start after a crash")
            elif not is_allowed(change.control):
                self.restore(change, "the policy no longer allows it")
            else:
                self._record("kept", change, reason="in effect at a start")

    def recover_after_boot(self) -> None:
        """Handle the changes before the last boot: only hardware may have kept them."""
        for change in reversed(self.all()):
            if change.boot != self._boot:
                self._recover_after_boot(change)

    def find_due(self, jobs: frozenset[int] | None) -> list[tuple[Change, str]]:
        """Return the changes to restore now, newest first, each with the reason.

        jobs: the jobs on this node; None if unknown.
        """
        now = self._node.clock.uptime()
        due: list[tuple[Change, str]] = []
        for change in reversed(self.all()):
            pause = self._pauses.get(change.number)
            if pause is not None:
                if now >= pause[0]:
                    due.append((change, "an earlier restore failed"))
            elif change.expires and now >= change.expires:
                due.append((change, "end of lease"))
            elif change.job and jobs is not None and change.job not in jobs:
                due.append((change, f"end of job {change.job}"))
        return due

    def next_due(self) -> float | None:
        """Return the seconds until the next lease or retry is due; None for never."""
        times: list[float] = []
        for change in self.all():
            pause = self._pauses.get(change.number)
            if pause is not None:  # its lease may have ended: only the next attempt matters
                times.append(pause[0])
            elif change.expires:
                times.append(change.expires)
        return max(0.0, min(times) - self._node.clock.uptime()) if times else None

    @property
    def has_jobs(self) -> bool:
        """Return whether any change ends with a job."""
        return any(change.job for change in self.all())

    def _put_back(self, change: Change, by: str) -> None:
        feature = self._feature(change)
        reason = ""
        try:
            now = feature.read(change.device)
        except CcagentError as error:
            now, reason = "", f"it could not be read: {error}"
        if now != change.before:
            is_ours = now == change.after or feature.matches(change.requested, now)
            if now and not is_ours:
                reason = f"another program had changed it to {now}"
            feature.write(change.device, change.before)
            now = feature.read(change.device)
            if not feature.matches(change.before, now):
                raise ControlError(f"{change.before} was written, {now} is read back")
        self._end(change.number)
        self._record("restored", change, by, reason)

    def _recover_after_boot(self, change: Change) -> None:
        with contextlib.suppress(CcagentError):
            feature = self._feature(change)
            now = feature.read(change.device)
            if feature.matches(change.requested, now) or now == change.after:
                self.restore(change, "the machine kept it over a boot")
                return
        self._end(change.number)
        self._record("reset", change, "the machine was booted")

    def _feature(self, change: Change) -> Feature:
        """Return the control of a change. Raise ControlError if its device no longer exists."""
        feature = self.catalogue.find(change.control)
        if feature.find_device(change.device) != change.device:
            raise ControlError(f"{change.control}: device {change.device} does not exist now")
        return feature

    def _undo(self, change: Change, order: Order, reason: str) -> str:
        """Restore the old value after a failed write. Return a phrase for the result."""
        kept = "the value before is kept"
        try:
            now = order.feature.read(change.device)
            if now != change.before:
                order.feature.write(change.device, change.before)
                now = order.feature.read(change.device)
            if not order.feature.matches(change.before, now):
                raise ControlError(f"{now} is read back")
            self._end(change.number)
        except CcagentError as error:
            kept = f"putting {change.before} back failed ({error}) and is tried again"
            self._put_off(change.number)
        self._record("failed", change, reason=f"{reason}; {kept}", lease=order.lease)
        return kept

    def _put_off(self, number: int) -> None:
        pause = min(_LONGEST_PAUSE, 2 * self._pauses.get(number, (0.0, _FIRST_PAUSE / 2))[1])
        self._pauses[number] = (self._node.clock.uptime() + pause, pause)

    @contextlib.contextmanager
    def _reserved(self, resource: str, name: str) -> Generator[None]:
        with self._lock:
            if resource in self._busy:
                raise ControlError(f"{name}: an earlier request for it has not ended")
            self._busy.add(resource)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(resource)

    def _end(self, number: int) -> None:
        self._journal.end(number)
        self._pauses.pop(number, None)

    def _record(
        self, action: Action, change: Change, by: str = "", reason: str = "", lease: float = 0.0
    ) -> None:
        """Add an entry to the audit. by: the sender of the change, if empty."""
        entry = Entry(
            action=action,
            control=change.control,
            device=change.device,
            before=change.before,
            requested=change.requested,
            after=change.after or "",
            by=by or change.sender,
            reason=reason,
            job=change.job,
            lease=lease,
        )
        self._audit.add(entry)


_CONTROLLERS = ("memory", "cpuacct", "freezer")


def find_jobs(node: Node) -> frozenset[int] | None:
    """Return the jobs on this node; None if a directory can't be read."""
    errors: list[CcagentError] = []
    try:
        directories = job_directories(node, _CONTROLLERS, lambda _, error: errors.append(error))
    except NotHereError:
        return frozenset()
    return None if errors else frozenset(directory.job for directory in directories)


def find_owner(node: Node, *, is_needed: bool) -> int:
    """Return the only job on the node; 0 without one.

    Raise ControlError if exactly one is required and none or several exist.
    """
    jobs = find_jobs(node)
    if jobs is not None and len(jobs) == 1:
        return min(jobs)
    if is_needed:
        count = "the jobs on it can't be read" if jobs is None else f"{len(jobs)} jobs are on it"
        raise ControlError(f"set only while exactly one job is on this node (owner-only): {count}")
    return 0
