"""Parsers for values of Slurm's tools: durations, sizes, exit codes, states, limits.

Each function takes the text of one field and raises ValueError for an unknown form. Source:
sacct(1), job_state_codes; forms seen in Slurm 20.11 to 26.05.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNSET = 0
INFINITE = 1
"""ExtendedUint for no value, and for no limit. A value n is n + 2."""
_OFFSET = 2

_NOTHING = frozenset(
    {"", "Unknown", "None", "N/A", "NONE", "(null)", "None assigned", "0", "INVALID"}
)
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.(\d{1,9}))?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)([cn]?)", re.ASCII)
_STATE = re.compile(r"[A-Z][A-Z_]*", re.ASCII)
_KB = {"": 1 / 1024, "K": 1, "M": 1024, "G": 1024**2, "T": 1024**3, "P": 1024**4, "E": 1024**5}
_LARGEST = 2**64 - 1 - _OFFSET
_LONGEST = 30
_LATEST = 2**35


class State(NamedTuple):
    """A state as a single word, and its detail, such as `by 5002`."""

    word: str
    detail: str


def state(text: str) -> State:
    """Split `CANCELLED by 5002` into word and detail."""
    word, _, detail = text.partition(" ")
    word = word.rstrip("+")
    if not _STATE.fullmatch(word):
        raise ValueError(f"{_show(text)} is not a state")
    return State(word, detail)


def seconds(text: str) -> int:
    """Return rounded seconds of `[DD-]HH:MM:SS` or `MM:SS.mmm`; 0 for empty text."""
    if text in _NOTHING:
        return 0
    found = _DURATION.fullmatch(text) if len(text) < _LONGEST else None
    if found is None:
        raise ValueError(f"{_show(text)} is not a duration")
    days, hours, minutes, whole, fraction = found.groups()
    total = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + int(whole)
    return _uint(total + (fraction is not None and fraction[0] >= "5"))


def kilobytes(text: str) -> int:
    """Return KB, rounded up, of `3772K` or `1.50M`; a number without a suffix is in bytes."""
    if text in _NOTHING:
        return 0
    found = _SIZE.fullmatch(text) if len(text) < _LONGEST else None
    if found is None:
        raise ValueError(f"{_show(text)} is not a size")
    return _uint(-(-float(found[1]) * _KB[found[2]] // 1))


def memory_per_node(text: str, cpus: int, nodes: int) -> int:
    """Return KB per node of ReqMem.

    `4000Mc` is per CPU and `4Gn` per node (before 21.08), without a letter the total of the job.
    """
    if text in _NOTHING or text in {"0n", "0c", "0Mn", "0Mc", "0M", "?"}:
        return 0
    found = _MEMORY.fullmatch(text) if len(text) < _LONGEST else None
    if found is None:
        raise ValueError(f"{_show(text)} is not an amount of memory")
    amount = float(found[1]) * _KB[found[2] or "M"]
    if found[3] == "c":
        amount = amount * cpus / max(1, nodes)
    elif not found[3]:
        amount /= max(1, nodes)
    return _uint(round(amount))


def time_limit(text: str) -> int:
    """Return a limit in minutes as ExtendedUint of seconds, the form that receivers expect."""
    limit = parse_extended(text)
    return limit if limit <= INFINITE else _uint((limit - _OFFSET) * 60) + _OFFSET


def exit_code(text: str) -> int:
    """Return the exit code of `CODE:SIGNAL`, equal to JOB_INFO.exit_code.return_code."""
    code, colon, signal = text.partition(":")
    return uint(code) if not colon or uint(signal) >= 0 else 0


def parse_extended(text: str) -> int:
    """Return an ExtendedUint: 0 for no value, 1 for no limit, n + 2 for n."""
    if text in {"UNLIMITED", "INFINITE"}:
        return INFINITE
    if text in _NOTHING - {"0"} or text == "Partition_Limit":
        return UNSET
    return uint(text) + _OFFSET


def uint(text: str) -> int:
    """Return an unsigned integer; 0 for empty text."""
    if text in _NOTHING:
        return 0
    if not (text.isascii() and text.isdecimal()) or len(text) >= _LONGEST:
        raise ValueError(f"{_show(text)} is not a number")
    return _uint(int(text))


def moment(text: str) -> int:
    """Return seconds since 1970, the format of SLURM_TIME_FORMAT=%s; 0 for no time."""
    seconds = uint(text)
    if seconds > _LATEST:
        raise ValueError(f"{_show(text)} is not a time")
    return seconds


def _uint(number: float) -> int:
    return min(int(number), _LARGEST)


def _show(text: str) -> str:
    return repr(text[:40])
