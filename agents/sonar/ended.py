"""What processes used that have ended since the reading before: rolled up by job, user, command.

The kernel sums up whole lives. Of a process that an earlier reading had, what that one told is
taken off again: it has been sent. What is left is what began and ended between two readings, and
the last moments of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.sonar.cgroup import Placement
from ccagent.agents.sonar.kernel.ended_records import Key, parse_ended
from ccagent.agents.sonar.kernel.task_records import KERNEL_THREAD, Task, ticks
from ccagent.agents.sonar.process import ENDED, Process
from ccagent.agents.sonar.process_files import command_text
from ccagent.agents.sonar.rollup import pids_of_ended
from ccagent.errors import CcagentError, NotHereError, NotPermittedError

if TYPE_CHECKING:
    from ccagent.agents.sonar.kernel.ended_records import Reading
    from ccagent.agents.sonar.selection import Selection
    from ccagent.node import Node

_LARGEST = 64 * 1024 * 1024
_SECOND = 1_000_000_000
_PRUNED_EVERY = 20
"""Readings after which what the kernel has forgotten is forgotten here."""

_PATIENCE = 3
"""Readings after which a process that was gone must have been summed up by the kernel."""

_MOST_COMMANDS = 50
"""Records of a group: what more commands used is one record, whatever names users give them."""

_OTHERS = "_others_"

_MOST_GROUPS = 1000
"""Process groups outside of jobs, those that used most."""

_MOST_KNOWN = 70_000
"""Entries remembered: the kernel has 16,384, or 256 for each CPU."""

_FORGOTTEN_AFTER = 660 * _SECOND
"""The kernel forgets what nobody added to for ten minutes."""


class _Group(NamedTuple):
    """Whose records come together. group: process group outside of jobs, else 0."""

    job: int
    group: int
    uid: int


class _Growth(NamedTuple):
    """What ended since the reading before: processes, and ns on a CPU."""

    processes: int
    runtime: int
    in_container: bool = False

    def plus(self, other: _Growth) -> _Growth:
        return _Growth(
            self.processes + other.processes,
            self.runtime + other.runtime,
            self.in_container or other.in_container,
        )


PlaceOf = Callable[[Key], Placement]
"""Tells where the processes of an entry were."""


class _Known(NamedTuple):
    """What an entry had at the last reading that told of it. See Ended."""

    since: int
    processes: int
    runtime: int
    last: int


class EndedProcesses:
    """Takes the differences of the kernel's sums."""

    def __init__(self, node: Node, selection: Selection, path: str) -> None:
        self._node = node
        self._selection = selection
        self._path = path
        self._known: dict[Key, _Known] = {}
        self._read_at = self._base = self._counted = self._lost = 0
        self._growths: dict[Key, _Growth] = {}
        # Told already, ns: the kernel sums a process up a moment after it is gone.
        self._told: dict[_Group, list[tuple[int, int]]] = {}
        self._reading = 0
        self._pids = pids_of_ended()

    def read(self, errors: list[str]) -> None:
        """Read the sums. Where they are not pinned, or not for this user, there are none."""
        self._reading += 1
        self._growths = {}
        try:
            reading = parse_ended(self._node.read(self._path, _LARGEST))
        except CcagentError as error:
            if not isinstance(error, NotHereError | NotPermittedError):
                errors.append(str(error))
            self._read_at = 0
            return
        self._take(reading, errors)

    def _take(self, reading: Reading, errors: list[str]) -> None:
        before, self._read_at = self._read_at, reading.header.time
        for key, ended in reading.entries.items():
            old = self._known.get(key)
            if old is not None and old.since == ended.since:
                if ended.processes > old.processes:
                    self._growths[key] = _Growth(
                        ended.processes - old.processes, ended.runtime - old.runtime
                    )
            elif before and ended.since >= before:
                self._growths[key] = _Growth(ended.processes, ended.runtime)
            self._known[key] = _Known(ended.since, ended.processes, ended.runtime, ended.last)
        if not before:
            self._growths = {}
        self._check(reading, is_first=not before, errors=errors)
        if self._reading % _PRUNED_EVERY == 0 or len(self._known) > _MOST_KNOWN:
            oldest = reading.header.time - _FORGOTTEN_AFTER
            kept = {key: known for key, known in self._known.items() if known.last >= oldest}
            if len(kept) > _MOST_KNOWN:
                kept = dict(sorted(kept.items(), key=_last)[-_MOST_KNOWN // 2 :])
            self._known = kept

    def _check(self, reading: Reading, *, is_first: bool, errors: list[str]) -> None:
        """Compare what was told apart with the total; what is missing is missing for good."""
        total = reading.total.processes
        if is_first or total < self._base:
            # Of those that ended during the reading the total doesn't know yet.
            late = sum(ended.last >= reading.header.time for ended in reading.entries.values())
            self._base, self._counted, self._lost = total + late, 0, 0
            return
        self._counted += sum(growth.processes for growth in self._growths.values())
        missing = total - self._base - self._counted
        if missing > self._lost:
            errors.append(
                f"/{self._path}: what {missing - self._lost} ended processes used is not told apart"
            )
            self._lost = missing

    def records(
        self,
        gone: list[tuple[Task, Placement]],
        place_of: PlaceOf,
        seconds: float,
        errors: list[str],
    ) -> list[Process]:
        """Make the records. gone: processes that this reading no longer has, with their places.

        seconds: since the reading before.
        """
        hertz = self._node.clock_ticks
        for task, place in gone:
            if not task.flags & KERNEL_THREAD:
                # As exactly as it was sent.
                told = ticks(task, hertz)[0] * (_SECOND // hertz)
                group = _group(place, task.pgid, task.euid)
                self._told.setdefault(group, []).append((told, self._reading))
        found: list[Process] = []
        if self._growths and seconds > 0:
            for group, commands in self._groups(place_of, errors).items():
                found += self._of_group(group, commands, seconds)
        self._forget()
        self._pids.end_sample()
        return found

    def _groups(self, place_of: PlaceOf, errors: list[str]) -> dict[_Group, dict[str, _Growth]]:
        """Sum up what ended by command, and those by whom they belong to."""
        groups: dict[_Group, dict[str, _Growth]] = {}
        for key, growth in self._growths.items():
            place = place_of(key)
            commands = groups.setdefault(_group(place, key.pgid, key.euid), {})
            name = command_text(key.command, b"")
            before = commands.get(name, _Growth(0, 0, place.container))
            commands[name] = before.plus(growth)
        outside = [group for group in groups if not group.job]
        if len(outside) > _MOST_GROUPS:
            outside.sort(key=lambda group: sum(each.runtime for each in groups[group].values()))
            for group in outside[:-_MOST_GROUPS]:
                del groups[group]
            count = len(outside) - _MOST_GROUPS
            errors.append(f"what ended in {count} process groups is left out: there are too many")
        return groups

    def _of_group(
        self, group: _Group, commands: dict[str, _Growth], seconds: float
    ) -> list[Process]:
        """Make a record for each command of a group, less what was told of it.

        Outside of jobs less than a clock tick is nothing, as it is of a process that is alive.
        """
        least = 1 if group.job else _SECOND // self._node.clock_ticks
        debt = sum(told for told, _ in self._told.pop(group, []))
        rest: dict[str, _Growth] = {}
        for name, growth in sorted(commands.items(), key=_runtime, reverse=True):
            paid = min(debt, growth.runtime)
            debt -= paid
            left = growth._replace(runtime=growth.runtime - paid)
            if left.runtime >= least and self._selection.wants(
                self._node, group.uid, name, in_container=left.in_container
            ):
                kept = name if len(rest) < _MOST_COMMANDS else _OTHERS
                rest[kept] = rest.get(kept, _Growth(0, 0)).plus(left)
        if debt:
            self._told[group] = [(debt, self._reading)]
        return [self._record(group, name, rest[name], seconds) for name in sorted(rest)]

    def _record(self, group: _Group, name: str, ended: _Growth, seconds: float) -> Process:
        text = f"{group.job}/{group.group}/{group.uid}/{name}{ENDED}"
        return Process(
            pid=self._pids.of(text),
            ppid=1,
            process_group=group.group,
            job=group.job,
            uid=group.uid,
            command=name + ENDED,
            in_container=ended.in_container,
            start_time=0.0,
            cpu_seconds=0.0,
            cpu_time=0,
            cpu_util=round(100.0 * ended.runtime / _SECOND / seconds, 3),
            resident_memory=0,
            virtual_memory=0,
            num_threads=0,
            data_read=0,
            data_written=0,
            data_cancelled=0,
            rolledup=ended.processes - 1,
        )

    def _forget(self) -> None:
        """Forget what was told of processes that the kernel will not sum up any more."""
        oldest = self._reading - _PATIENCE
        self._told = {
            group: kept
            for group, debts in self._told.items()
            if (kept := [debt for debt in debts if debt[1] > oldest])
        }


def _group(place: Placement, process_group: int, uid: int) -> _Group:
    return _Group(place.job, 0 if place.job else process_group, uid)


def _last(item: tuple[Key, _Known]) -> int:
    return item[1].last


def _runtime(item: tuple[str, _Growth]) -> int:
    return item[1].runtime
