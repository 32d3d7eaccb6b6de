"""Records of processes that have ended since the reading before: by job, user and command.

The kernel sums up whole lives. What an earlier reading had of a process has been sent already and
is subtracted. The rest is what began and ended between two readings, and the last moments of the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.sonar.jobs.rollup import pids_of_ended
from ccagent.agents.sonar.process import ENDED, Process
from ccagent.agents.sonar.sources.ended_growth import EndedGrowth, Growth
from ccagent.machine.bpf.ended_records import Key
from ccagent.machine.bpf.task_records import KERNEL_THREAD, Task, ticks
from ccagent.machine.procfs.process_cgroup import Placement
from ccagent.machine.procfs.process_files import command_text

if TYPE_CHECKING:
    from ccagent.agents.sonar.jobs.selection import Selection
    from ccagent.machine.node import Node

_SECOND = 1_000_000_000
_SHORT = _SECOND // 10
"""SHORT in ended.bpf.c: who used less may be among those without a process group."""

_PATIENCE = 3
"""Readings after which a process that was gone must have been summed up by the kernel."""

_MOST_COMMANDS = 50
"""Records of a group: what more commands used is one record, whatever names users give them."""

_OTHERS = "_others_"

_MOST_GROUPS = 1000
"""Process groups outside of jobs that have records of their own, those that used most; also users
with records of what ended in other groups."""


class _Group(NamedTuple):
    """Whose records come together.

    group: process group outside of jobs; 0 in jobs, and for what has no records of its own.
    """

    job: int
    group: int
    uid: int


_Commands = dict[str, Growth]

PlaceOf = Callable[[Key], Placement]
"""Returns where the processes of an entry were."""


class EndedProcesses:
    """Makes the records of what ended, one reading after the other."""

    def __init__(self, node: Node, selection: Selection, path: str) -> None:
        self._node = node
        self._selection = selection
        self._growth = EndedGrowth(node, path)
        self._growths: dict[Key, Growth] = {}
        # Sent already, ns: the kernel sums a process up a moment after it is gone.
        self._told: dict[_Group, list[tuple[int, int]]] = {}
        self._reading = 0
        self._pids = pids_of_ended()

    @property
    def is_counting(self) -> bool:
        """Return whether ended processes were counted at the last reading."""
        return self._growth.is_counting

    def read(self, errors: list[str]) -> None:
        """Read the kernel's sums."""
        self._reading += 1
        self._growths = self._growth.read(errors)

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
            # As exactly as it was sent.
            told = ticks(task, hertz)[0] * (_SECOND // hertz)
            if told and not task.flags & KERNEL_THREAD:
                group = _group(place, task.pgid, task.euid)
                self._told.setdefault(group, []).append((told, self._reading))
        found: list[Process] = []
        if self._growths and seconds > 0:
            groups = self._gathered(self._groups(place_of), errors)
            for group, commands in groups.items():
                found += self._of_group(group, commands, seconds)
        self._forget()
        self._pids.end_sample()
        return found

    def _groups(self, place_of: PlaceOf) -> dict[_Group, _Commands]:
        """Sum up what ended by command and by whom it belongs to, less what was sent of it."""
        groups: dict[_Group, _Commands] = {}
        for key, growth in self._growths.items():
            place = place_of(key)
            commands = groups.setdefault(_group(place, key.pgid, key.euid), {})
            name = command_text(key.command, b"")
            before = commands.get(name, Growth(0, 0, place.container))
            commands[name] = before.plus(growth)
        for group, commands in groups.items():
            if group.job or group.group:
                self._subtract(group, commands)
        for group, commands in groups.items():
            if not group.job and not group.group:
                self._subtract(group, commands)
                self._subtract_short(group, commands)
        return groups

    def _subtract(self, group: _Group, commands: _Commands, most: int = 0) -> None:
        """Take off what was sent of a group, of debts up to `most` ns if that is given."""
        debts = self._told.pop(group, [])
        kept = [debt for debt in debts if most and debt[0] >= most]
        debt = sum(told for told, _ in debts) - sum(told for told, _ in kept)
        for name, growth in sorted(commands.items(), key=_runtime, reverse=True):
            paid = min(debt, growth.runtime)
            debt -= paid
            commands[name] = growth._replace(runtime=growth.runtime - paid)
        if debt:
            kept.append((debt, self._reading))
        if kept:
            self._told[group] = kept

    def _subtract_short(self, group: _Group, commands: _Commands) -> None:
        """Take off what was sent of processes that the kernel has without their group."""
        for other in [each for each in self._told if not each.job and each.uid == group.uid]:
            self._subtract(other, commands, _SHORT)

    def _gathered(
        self, groups: dict[_Group, _Commands], errors: list[str]
    ) -> dict[_Group, _Commands]:
        """Put the rests of process groups outside of jobs together by user.

        These are commands that used less than a clock tick in their group, and all that ended in
        groups beyond the most that have records of their own.
        """
        tick = _SECOND // self._node.clock_ticks
        outside = [group for group in groups if not group.job and group.group]
        outside.sort(key=lambda group: sum(each.runtime for each in groups[group].values()))
        for number, group in enumerate(reversed(outside)):
            is_rest = number >= _MOST_GROUPS
            together = groups.setdefault(group._replace(group=0), {})
            for name, growth in [*groups[group].items()]:
                if is_rest or growth.runtime < tick:
                    together[name] = together.get(name, Growth(0, 0)).plus(growth)
                    del groups[group][name]
        shared = [group for group in groups if not group.job and not group.group]
        if len(shared) > _MOST_GROUPS:
            shared.sort(key=lambda group: sum(each.runtime for each in groups[group].values()))
            for group in shared[:-_MOST_GROUPS]:
                del groups[group]
            count = len(shared) - _MOST_GROUPS
            errors.append(
                f"what ended outside of jobs is left out for {count} users: there are too many"
            )
        return groups

    def _of_group(self, group: _Group, commands: _Commands, seconds: float) -> list[Process]:
        """Make a record for each command of a group."""
        rest: dict[str, Growth] = {}
        for name, growth in sorted(commands.items(), key=_runtime, reverse=True):
            if growth.runtime and self._selection.wants(
                self._node, group.uid, name, in_container=growth.in_container
            ):
                kept = name if len(rest) < _MOST_COMMANDS else _OTHERS
                rest[kept] = rest.get(kept, Growth(0, 0)).plus(growth)
        return [self._record(group, name, rest[name], seconds) for name in sorted(rest)]

    def _record(self, group: _Group, name: str, ended: Growth, seconds: float) -> Process:
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
            cpu_seconds=ended.runtime / _SECOND,
            cpu_time=0,
            cpu_util=round(100.0 * ended.runtime / _SECOND / seconds, 3),
            resident_memory=0,
            virtual_memory=0,
            num_threads=0,
            data_read=0,
            data_written=0,
            data_cancelled=0,
            rolledup=ended.processes - 1,
            is_ended=True,
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


def _runtime(item: tuple[str, Growth]) -> int:
    return item[1].runtime
