"""Records of processes that have ended since the previous reading, by job, user and command.

The kernel sums up the whole life of a process. Readings have already sent most of the CPU time of
known processes; it is subtracted. The rest belongs to processes that started and ended between two
readings, and to the last moments of known processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.sonar.jobs.rollup import pids_of_ended
from ccagent.agents.sonar.process import ENDED, OwnerGroup, Process, ProcessSelection
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf.process_records import (
    KERNEL_THREAD,
    EndedKey,
    Task,
    parse_key,
    parse_raw,
    ticks,
)
from ccagent.machine.cgroup.jobs import CgroupMembership
from ccagent.machine.procfs.process_files import command_text

if TYPE_CHECKING:
    from ccagent.machine.bpf.process_records import RawEndedReading, RawEntry
    from ccagent.machine.node import Node

_LARGEST = 64 * 1024 * 1024
_SECOND = 1_000_000_000

_PRUNED_EVERY = 5
"""Readings after which an entry that the kernel removed is removed here."""

_MOST_KNOWN = 16_384
"""Entries to keep: the kernel's own limit on most machines. Above 1.5 times this number, the
entries unchanged for longest are removed.
"""

_KEPT_LONGER = 60 * _SECOND
"""The kernel removes entries only when it is read."""

_SHORT = _SECOND // 10
"""SHORT in ended.bpf.c, ns. The kernel may count processes with less CPU time without a group."""

_PATIENCE = 3
"""Readings within which the kernel sums up an ended process."""

_MOST_COMMANDS = 50
"""Maximum records of a group. Further commands share one record."""

_OTHERS = "_others_"

_MOST_GROUPS = 1000
"""Maximum process groups outside of jobs with separate records: the groups with the most CPU time.
Also the maximum number of users with a record of the remaining groups.
"""

MembershipOf = Callable[[EndedKey], CgroupMembership]
"""Returns the job and container of the processes of an entry."""


class EndedDelta(NamedTuple):
    """Processes that ended since the previous reading: their number and CPU time in ns."""

    processes: int
    runtime: int
    in_container: bool = False

    def plus(self, other: EndedDelta) -> EndedDelta:
        """Return the sum of this delta and another."""
        return EndedDelta(
            self.processes + other.processes,
            self.runtime + other.runtime,
            self.in_container or other.in_container,
        )


class EndedDeltas:
    """Computes the deltas of the kernel's sums between readings.

    Most entries do not change, and a burst of short processes makes many. So entries are kept as
    raw bytes and numbers, and the key of an entry is parsed only after a change.
    """

    def __init__(self, node: Node, path: str) -> None:
        self._node = node
        self._path = path
        self._known: dict[bytes, RawEntry] = {}
        self._base = self._counted = self._missing = self._lost = 0
        self._read_at = 0
        self._reading = 0

    @property
    def is_counting(self) -> bool:
        """Return whether the last reading got the kernel's sums."""
        return self._read_at > 0

    def read(self, errors: list[str]) -> dict[EndedKey, EndedDelta]:
        """Return the deltas by key; empty if the sums are not pinned or not readable."""
        self._reading += 1
        try:
            reading = parse_raw(self._node.read(self._path, _LARGEST))
        except CcagentError as error:
            if not isinstance(error, NotHereError | NotPermittedError):
                errors.append(str(error))
            self._read_at = 0
            return {}
        return self._take(reading, errors)

    def _take(self, reading: RawEndedReading, errors: list[str]) -> dict[EndedKey, EndedDelta]:
        before, self._read_at = self._read_at, reading.header.time
        known = self._known
        deltas: dict[bytes, EndedDelta] = {}
        late = 0
        for entry in reading.entries:
            key, processes, runtime, since, last = entry
            old = known.get(key)
            if old is not None and old[3] == since:
                if processes > old[1]:
                    deltas[key] = EndedDelta(processes - old[1], runtime - old[2])
            elif before and since >= before:
                deltas[key] = EndedDelta(processes, runtime)
            known[key] = entry
            late += last >= reading.header.time
        if before and reading.total.processes >= self._base:
            self._check(reading.total.processes, deltas, errors)
        else:
            # The total does not include processes that ended during the reading.
            self._base = reading.total.processes + late
            self._counted = self._missing = self._lost = 0
        if self._reading % _PRUNED_EVERY == 0 or len(known) > _MOST_KNOWN * 3 // 2:
            self._prune(reading.header.time - reading.kept - _KEPT_LONGER)
        if not before:
            return {}
        return {parse_key(key): delta for key, delta in deltas.items()}

    def _check(self, total: int, deltas: dict[bytes, EndedDelta], errors: list[str]) -> None:
        """Compare the deltas with the total.

        A process may be in the total of one reading and in the entries of the next. If it is still
        missing then, it is lost.
        """
        self._counted += sum(delta.processes for delta in deltas.values())
        missing = total - self._base - self._counted
        lost = min(missing, self._missing)
        self._missing = missing
        if lost > self._lost:
            errors.append(
                f"/{self._path}: the CPU time of {lost - self._lost} ended processes was lost"
            )
            self._lost = lost

    def _prune(self, oldest: int) -> None:
        kept = {key: entry for key, entry in self._known.items() if entry[4] >= oldest}
        if len(kept) > _MOST_KNOWN * 3 // 2:
            kept = dict(sorted(kept.items(), key=_last)[-_MOST_KNOWN:])
        self._known = kept


def _last(item: tuple[bytes, RawEntry]) -> int:
    return item[1][4]


_Commands = dict[str, EndedDelta]


class EndedProcesses:
    """Builds the records of ended processes of each reading."""

    def __init__(self, node: Node, selection: ProcessSelection, path: str) -> None:
        self._node = node
        self._selection = selection
        self._differences = EndedDeltas(node, path)
        self._deltas: dict[EndedKey, EndedDelta] = {}
        # CPU time already sent, ns: the kernel sums a process up a moment after its end.
        self._sent: dict[OwnerGroup, list[tuple[int, int]]] = {}
        self._reading = 0
        self._pids = pids_of_ended()

    @property
    def is_counting(self) -> bool:
        """Return whether ended processes were counted at the last reading."""
        return self._differences.is_counting

    def read(self, errors: list[str]) -> None:
        """Read the kernel's sums."""
        self._reading += 1
        self._deltas = self._differences.read(errors)

    def records(
        self,
        gone: list[tuple[Task, CgroupMembership]],
        membership_of: MembershipOf,
        seconds: float,
        errors: list[str],
    ) -> list[Process]:
        """Return the records of ended processes.

        gone: processes that disappeared since the previous reading, with their jobs. seconds: since
        the previous reading.
        """
        hertz = self._node.clock_ticks
        for task, membership in gone:
            # Earlier records had whole ticks.
            sent = ticks(task, hertz)[0] * (_SECOND // hertz)
            if sent and not task.flags & KERNEL_THREAD:
                group = _group(membership, task.pgid, task.euid)
                self._sent.setdefault(group, []).append((sent, self._reading))
        processes: list[Process] = []
        if self._deltas and seconds > 0:
            groups = self._gather(self._groups(membership_of), errors)
            for group, commands in groups.items():
                processes += self._of_group(group, commands, seconds)
        self._forget()
        self._pids.end_sample()
        return processes

    def _groups(self, membership_of: MembershipOf) -> dict[OwnerGroup, _Commands]:
        """Return the sums by owner and command, without the CPU time already sent."""
        groups: dict[OwnerGroup, _Commands] = {}
        for key, delta in self._deltas.items():
            membership = membership_of(key)
            commands = groups.setdefault(_group(membership, key.pgid, key.euid), {})
            name = command_text(key.command, b"")
            before = commands.get(name, EndedDelta(0, 0, membership.container))
            commands[name] = before.plus(delta)
        for group, commands in groups.items():
            if group.job or group.group:
                self._subtract(group, commands)
        for group, commands in groups.items():
            if not group.job and not group.group:
                self._subtract(group, commands)
                self._subtract_short(group, commands)
        return groups

    def _subtract(self, group: OwnerGroup, commands: _Commands, most: int = 0) -> None:
        """Subtract the CPU time already sent for a group.

        With a nonzero `most`, subtract only debts below `most` ns.
        """
        debts = self._sent.pop(group, [])
        kept = [debt for debt in debts if most and debt[0] >= most]
        debt = sum(sent for sent, _ in debts) - sum(sent for sent, _ in kept)
        for name, delta in sorted(commands.items(), key=_runtime, reverse=True):
            paid = min(debt, delta.runtime)
            debt -= paid
            commands[name] = delta._replace(runtime=delta.runtime - paid)
        if debt:
            kept.append((debt, self._reading))
        if kept:
            self._sent[group] = kept

    def _subtract_short(self, group: OwnerGroup, commands: _Commands) -> None:
        """Subtract the CPU time already sent of processes that the kernel counts without group."""
        for other in [owner for owner in self._sent if not owner.job and owner.uid == group.uid]:
            self._subtract(other, commands, _SHORT)

    def _gather(
        self, groups: dict[OwnerGroup, _Commands], errors: list[str]
    ) -> dict[OwnerGroup, _Commands]:
        """Merge the remainders of process groups outside of jobs by user.

        Remainders are commands below one clock tick in their group, and groups beyond _MOST_GROUPS.
        """
        tick = _SECOND // self._node.clock_ticks
        outside = [group for group in groups if not group.job and group.group]
        outside.sort(key=lambda group: sum(delta.runtime for delta in groups[group].values()))
        for number, group in enumerate(reversed(outside)):
            is_rest = number >= _MOST_GROUPS
            together = groups.setdefault(group._replace(group=0), {})
            for name, delta in [*groups[group].items()]:
                if is_rest or delta.runtime < tick:
                    together[name] = together.get(name, EndedDelta(0, 0)).plus(delta)
                    del groups[group][name]
        shared = [group for group in groups if not group.job and not group.group]
        if len(shared) > _MOST_GROUPS:
            shared.sort(key=lambda group: sum(delta.runtime for delta in groups[group].values()))
            for group in shared[:-_MOST_GROUPS]:
                del groups[group]
            count = len(shared) - _MOST_GROUPS
            errors.append(
                f"ended processes outside of jobs are omitted for {count} users: too many users"
            )
        return groups

    def _of_group(self, group: OwnerGroup, commands: _Commands, seconds: float) -> list[Process]:
        """Return one record for each command of a group."""
        rest: dict[str, EndedDelta] = {}
        for name, delta in sorted(commands.items(), key=_runtime, reverse=True):
            if delta.runtime and self._selection.wants(
                self._node, group.uid, name, in_container=delta.in_container
            ):
                kept = name if len(rest) < _MOST_COMMANDS else _OTHERS
                rest[kept] = rest.get(kept, EndedDelta(0, 0)).plus(delta)
        return [self._record(group, name, rest[name], seconds) for name in sorted(rest)]

    def _record(self, group: OwnerGroup, name: str, ended: EndedDelta, seconds: float) -> Process:
        text = f"{group.job}/{group.group}/{group.uid}/{name}{ENDED}"
        return Process(
            pid=self._pids.of(text),
            ppid=1,
            process_group=group.group,
            job=group.job,
            uid=group.uid,
            command=name + ENDED,
            in_container=ended.in_container,
            cpu_seconds=ended.runtime / _SECOND,
            cpu_util=round(100.0 * ended.runtime / _SECOND / seconds, 3),
            rolledup=ended.processes - 1,
            is_ended=True,
        )

    def _forget(self) -> None:
        """Forget debts older than _PATIENCE readings: the kernel has summed those processes up."""
        oldest = self._reading - _PATIENCE
        self._sent = {
            group: kept
            for group, debts in self._sent.items()
            if (kept := [debt for debt in debts if debt[1] > oldest])
        }


def _group(membership: CgroupMembership, process_group: int, uid: int) -> OwnerGroup:
    return OwnerGroup(membership.job, 0 if membership.job else process_group, uid)


def _runtime(item: tuple[str, EndedDelta]) -> int:
    return item[1].runtime
