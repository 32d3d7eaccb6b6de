"""Ended processes as counters, for receivers that take differences of `cpu_time`: Jobanalyzer.

Its sonalyze makes a stream of the records with equal pid and command. It takes the CPU time between
two of them from the difference of `cpu_time`; the first one of a stream counts its `cpu_avg`. So
what ended of a job, user and command is one record in each sample while the job is there, and its
`cpu_time` only grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.agents.sonar.process import ENDED
from ccagent.envelopes import NO_FLOAT

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import Process

_PATIENCE = 3
"""Samples after which nothing more is added to what ended in a job that has no process."""

_MOST_COMMANDS = 50
_OTHERS = f"_others_{ENDED}"


class _Owner(NamedTuple):
    """Whose a stream is. group: process group outside of jobs, else 0."""

    job: int
    group: int
    uid: int


class _Stream:
    """What ended of one command; `seconds` of CPU time in all."""

    __slots__ = ("process", "seconds")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.seconds = 0.0


class EndedStreams:
    """Continues streams from sample to sample."""

    def __init__(self) -> None:
        self._streams: dict[_Owner, dict[str, _Stream]] = {}
        self._seen: dict[_Owner, int] = {}
        self._sample = 0

    def continued(self, processes: list[Process]) -> list[Process]:
        """Return the processes with a record of each stream instead of what ended just now."""
        self._sample += 1
        living: list[Process] = []
        grown: dict[_Stream, Process] = {}
        for process in processes:
            owner = _owner(process)
            if process.is_ended:
                stream = self._stream(owner, process)
                stream.seconds += process.cpu_seconds
                before = grown.get(stream)
                grown[stream] = process if before is None else _sum(before, process)
                self._seen[owner] = self._sample
            else:
                living.append(process)
                if owner in self._streams:
                    self._seen[owner] = self._sample
        for owner in [*self._streams]:
            seen = self._seen[owner]
            if seen == self._sample:
                streams = self._streams[owner].values()
                living += [_record(stream, grown.get(stream)) for stream in streams]
            elif seen + _PATIENCE <= self._sample:
                del self._streams[owner], self._seen[owner]
        return living

    def _stream(self, owner: _Owner, process: Process) -> _Stream:
        streams = self._streams.setdefault(owner, {})
        command = process.command
        if command not in streams and len(streams) >= _MOST_COMMANDS:
            command = _OTHERS
        stream = streams.get(command)
        if stream is None:
            stream = streams[command] = _Stream(structs.replace(process, command=command))
        return stream


def _owner(process: Process) -> _Owner:
    return _Owner(process.job, 0 if process.job else process.process_group, process.uid)


def _sum(one: Process, other: Process) -> Process:
    return structs.replace(
        one,
        cpu_seconds=one.cpu_seconds + other.cpu_seconds,
        cpu_util=round(one.cpu_util + other.cpu_util, 3),
    )


def _record(stream: _Stream, grown: Process | None) -> Process:
    """Make the record of a stream. It stands for no number of processes: that would vary."""
    return structs.replace(
        stream.process,
        command=stream.process.command.removesuffix(ENDED),
        start_time=0.0 if grown is None else grown.start_time,
        cpu_seconds=0.0 if grown is None else grown.cpu_seconds,
        cpu_time=round(stream.seconds),
        cpu_util=NO_FLOAT if grown is None else grown.cpu_util,
        rolledup=0,
    )
