"""Roll-up of equal leaves of the process tree, and of ended processes as streams, into records."""

from __future__ import annotations

import os
from operator import attrgetter
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import structs

from ccagent.agents.sonar.process import ENDED, FIRST_PID_OF_ENDED, OwnerGroup, Process
from ccagent.machine.procfs.process_files import DEFUNCT
from ccagent.records.envelopes import NO_FLOAT, ROLL_UP, SampleProcess, SampleProcessGpu

if TYPE_CHECKING:
    from collections.abc import Iterable


_LARGEST_PID = 2**31 - 1
_FIELDS = attrgetter(*ROLL_UP)

_PATIENCE = 3
"""Samples within which the kernel counts an ended process."""

_MOST_COMMANDS = 50
_OTHERS = f"_others_{ENDED}"


class SyntheticPids:
    """Synthetic pids for records of several processes: unique and stable while a group exists.

    Each pid is derived from the group's key, so separate one-shot runs return the same pid.
    """

    def __init__(self, pids: range) -> None:
        self._range = pids
        self._pids: dict[str, int] = {}
        self._taken: set[int] = set()
        self._seen: set[str] = set()

    def of(self, key: str) -> int:
        """Return the pid of a group."""
        self._seen.add(key)
        pid = self._pids.get(key)
        if pid is None:
            first, span = self._range.start, len(self._range)
            pid = first + crc32(key.encode("utf-8", "replace")) % span
            while pid in self._taken:
                pid = first + (pid - first + 1) % span
            self._pids[key] = pid
            self._taken.add(pid)
        return pid

    def end_sample(self) -> None:
        """Forget groups that this sample did not use. May also be called before the next."""
        self._pids = {key: pid for key, pid in self._pids.items() if key in self._seen}
        self._taken = set(self._pids.values())
        self._seen.clear()


def pids_of_living(pid_max: int) -> SyntheticPids:
    """Return synthetic pids for living processes, above the highest real pid."""
    return SyntheticPids(range(min(pid_max, FIRST_PID_OF_ENDED // 2) + 1, FIRST_PID_OF_ENDED))


def pids_of_ended() -> SyntheticPids:
    """Return synthetic pids for ended processes, above those of `pids_of_living`."""
    return SyntheticPids(range(FIRST_PID_OF_ENDED, _LARGEST_PID))


def roll_up(
    processes: Iterable[SampleProcess], parents: set[int], job: str, pids: SyntheticPids
) -> list[SampleProcess]:
    """Roll up processes of one job and user with equal parent and command.

    parents: pids with children. Processes with children and unique leaves stay unchanged.
    """
    kept: list[SampleProcess] = []
    leaves: dict[tuple[int, str, bool], list[SampleProcess]] = {}
    for process in processes:
        if process.pid in parents or process.pid >= FIRST_PID_OF_ENDED:
            kept.append(process)
        else:
            key = (process.ppid, process.cmd, process.in_container)
            leaves.setdefault(key, []).append(process)
    for (ppid, command, in_container), group in leaves.items():
        if len(group) == 1:
            kept.append(group[0])
        else:
            kept.append(_sum(group, pids.of(f"{job}/{ppid}/{in_container:d}/{command}")))
    return kept


def _sum(group: list[SampleProcess], pid: int) -> SampleProcess:
    fields: dict[str, float] = {}
    columns = zip(*map(_FIELDS, group), strict=True)
    for (name, function), column in zip(ROLL_UP.items(), columns, strict=True):
        value = function(column)
        fields[name] = (round(value, 3) or NO_FLOAT) if isinstance(value, float) else value
    return structs.replace(
        group[0], **fields, pid=pid, rolledup=len(group) - 1, gpus=_sum_of_gpus(group)
    )


def _sum_of_gpus(group: list[SampleProcess]) -> list[SampleProcessGpu]:
    cards: dict[str, list[SampleProcessGpu]] = {}
    for process in group:
        for used in process.gpus:
            cards.setdefault(used.uuid, []).append(used)
    return [
        SampleProcessGpu(
            index=uses[0].index,
            uuid=uuid,
            gpu_util=round(sum(use.gpu_util for use in uses), 1) or NO_FLOAT,
            gpu_memory=sum(use.gpu_memory for use in uses),
            gpu_memory_util=round(sum(use.gpu_memory_util for use in uses), 1) or NO_FLOAT,
        )
        for uuid, uses in cards.items()
    ]


class _Stream:
    """Ended processes of one command. seconds: total CPU time. sent: highest value sent so far."""

    __slots__ = ("key", "process", "seconds", "sent")

    def __init__(self, process: Process, key: str) -> None:
        self.process = process
        self.key = key
        self.seconds = 0.0
        self.sent = 0


class EndedStreams:
    """Ended processes as counters, for receivers that take differences of `cpu_time`: Jobanalyzer.

    Jobanalyzer's sonalyze groups records with equal pid and command into a stream. It computes CPU
    time from the difference of `cpu_time` between two records, in whole seconds. The first record
    of a stream counts its `cpu_avg`. Therefore the ended processes of a job, user and command are
    one record in each sample of the job, and its `cpu_time` only grows. This record includes
    fractions of a second that no difference of a living process contained: most processes of a
    build use less than a second.

    A stream that pauses ends. Later processes start another stream with a new pid, because a gap or
    a falling counter loses CPU time. A restart of the agent starts new streams too.
    """

    def __init__(self) -> None:
        self._streams: dict[OwnerGroup, dict[str, _Stream]] = {}
        self._pids = pids_of_ended()
        self._sample = int.from_bytes(os.urandom(4), "little")
        # By pid: a living process, and the fraction of a second in its first record.
        self._living: dict[int, tuple[Process, float]] = {}
        self._fractions: dict[tuple[OwnerGroup, str], tuple[float, int]] = {}

    def continue_streams(self, processes: list[Process]) -> list[Process]:
        """Return the living processes and one record for each stream of ended processes."""
        self._sample += 1
        living: list[Process] = []
        grown: dict[_Stream, float] = {}
        present: set[OwnerGroup] = set()
        for process in processes:
            if not process.is_ended:
                living.append(process)
                continue
            owner = _owner(process)
            stream = self._stream(owner, process)
            stream.seconds += process.cpu_seconds
            grown[stream] = grown.get(stream, NO_FLOAT) + process.cpu_util
            present.add(owner)
        present |= self._follow(living)
        self._add_fractions()
        self._streams = {
            owner: streams for owner, streams in self._streams.items() if owner in present
        }
        for streams in self._streams.values():
            living += [
                self._record(stream, grown.get(stream, NO_FLOAT)) for stream in streams.values()
            ]
        self._pids.end_sample()
        return living

    def _follow(self, living: list[Process]) -> set[OwnerGroup]:
        """Update the living processes; note the fractions of a second of ended processes.

        Return the owners of streams that have a living process.
        """
        present: set[OwnerGroup] = set()
        before = self._living
        now: dict[int, tuple[Process, float]] = {}
        for process in living:
            if self._streams and (owner := _owner(process)) in self._streams:
                present.add(owner)
            known = before.get(process.pid)
            if known is None or known[0].start_time != process.start_time:
                now[process.pid] = process, process.cpu_seconds % 1
            else:
                now[process.pid] = process, known[1]
                del before[process.pid]
        for process, first in before.values():
            key = _owner(process), process.command.removesuffix(DEFUNCT) + ENDED
            seconds, _ = self._fractions.get(key, (0.0, 0))
            self._fractions[key] = seconds + process.cpu_seconds % 1 - first, self._sample
        self._living = now
        return present

    def _add_fractions(self) -> None:
        """Add the fractions to their streams. A stream may start one sample later."""
        waiting: dict[tuple[OwnerGroup, str], tuple[float, int]] = {}
        for (owner, command), (seconds, since) in self._fractions.items():
            streams = self._streams.get(owner, {})
            stream = streams.get(command) or streams.get(_OTHERS)
            if stream is not None:
                stream.seconds += seconds
            elif since + _PATIENCE > self._sample:
                waiting[owner, command] = seconds, since
        self._fractions = waiting

    def _stream(self, owner: OwnerGroup, process: Process) -> _Stream:
        streams = self._streams.setdefault(owner, {})
        command = process.command
        if command not in streams and len(streams) >= _MOST_COMMANDS:
            command = _OTHERS
        stream = streams.get(command)
        if stream is None:
            key = f"{owner.job}/{owner.group}/{owner.uid}/{command}/{self._sample}"
            stream = streams[command] = _Stream(structs.replace(process, command=command), key)
        return stream

    def _record(self, stream: _Stream, used: float) -> Process:
        """Return the record of a stream, without the number of processes, because it varies."""
        stream.sent = max(stream.sent, round(stream.seconds))
        return structs.replace(
            stream.process,
            pid=self._pids.of(stream.key),
            command=stream.process.command.removesuffix(ENDED),
            cpu_seconds=stream.seconds,
            cpu_time=stream.sent,
            cpu_util=round(used, 3) or NO_FLOAT,
            rolledup=0,
        )


def _owner(process: Process) -> OwnerGroup:
    return OwnerGroup(process.job, 0 if process.job else process.process_group, process.uid)
