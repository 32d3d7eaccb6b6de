"""Roll-up of equal leaves of the process tree into one record."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import structs

from ccagent.agents.sonar.process import FIRST_PID_OF_ENDED
from ccagent.records.envelopes import NO_FLOAT, ROLL_UP, SampleProcess, SampleProcessGpu

if TYPE_CHECKING:
    from collections.abc import Iterable

_LARGEST_PID = 2**31 - 1
_FIELDS = attrgetter(*ROLL_UP)


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
        """Forget groups that this sample did not use."""
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
