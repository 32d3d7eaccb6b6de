"""Flags of a job: letters, which need no colour, and words for wide terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.views.top.snapshot import TopCard, TopJob

_WATCHED = 15.0
"""Seconds before low use is flagged: programs start with reading their input."""

_LOW_GPU, _LOW_CPU = 15.0, 65.0
_FULL, _STALL, _LATE = 90.0, 10.0, 95.0
_ONE_FROM, _ONE_TO = 0.85, 1.01

MEANINGS = {
    "G": "a GPU of the job is idle",
    "g": "its GPUs are used less than 15 %",
    "M": "memory at 90 % of the limit, or processes killed by the OOM killer",
    "m": "10 % of the time a task waits for memory",
    "C": "one core's work on several",
    "c": "its CPUs are used less than 65 %",
    "T": "95 % of the time limit are used",
    "?": "incomplete: a part of the job is not visible",
}
"""Meanings of the flags, for the help."""

BAD = frozenset("GMT")


def find_notes(job: TopJob, cards: Iterable[TopCard]) -> tuple[str, ...]:
    """Return the flags of a job with their words."""
    if not job.job:
        return ()
    own = [card for card in cards if card.index in job.gpus]
    found = [*_gpu_notes(job, own), *_memory_notes(job)]
    if not own:
        found += _cpu_notes(job)
    if job.time_limit and job.elapsed is not None:
        share = 100 * job.elapsed / job.time_limit
        if share > _LATE:
            found.append(f"T {share:.0f} % of time")
    if job.cpus is None or not job.processes:
        found.append("? incomplete")
    return tuple(found)


def _gpu_notes(job: TopJob, cards: list[TopCard]) -> list[str]:
    idle = [card for card in cards if card.idle >= _WATCHED]
    if idle:
        names = ",".join(str(card.index) for card in idle)
        return [f"G GPU {names} idle"]
    known = [card.utilization for card in cards if card.utilization is not None]
    if known and job.watched >= _WATCHED and sum(known) / len(known) <= _LOW_GPU:
        return ["g GPU low"]
    return []


def _memory_notes(job: TopJob) -> list[str]:
    if job.oom_kills:
        return [f"M {job.oom_kills} killed"]
    if job.memory_limit and 100 * job.memory / job.memory_limit >= _FULL:
        return ["M memory full"]
    waits = job.pressure[1]
    return ["m waits for memory"] if waits is not None and waits >= _STALL else []


def _cpu_notes(job: TopJob) -> list[str]:
    if not job.cpus or job.watched < _WATCHED or not job.history:
        return []
    mean = sum(job.history) / len(job.history)
    cores = mean * job.cpus / 100
    if job.cpus > 1 and _ONE_FROM < cores < _ONE_TO:
        return ["C one core"]
    return ["c low CPU"] if mean < _LOW_CPU else []


def letters(notes: Iterable[str]) -> str:
    """Return the flags without words."""
    return "".join(note[0] for note in notes)
