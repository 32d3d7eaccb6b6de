"""Rows and values in the output of Slurm's tools, safe against any text of users.

Each run has a new random delimiter, so users can't write it into a job's name. It ends each field,
and a line break follows the last one. The first two fields of a row begin with a job id. So a
damaged row, with a delimiter too few or too many, ends where the next job id begins.

A parser of a value takes the text of one field and raises ValueError for an unknown form. Source:
sacct(1), job_state_codes; forms seen in Slurm 20.11 to 26.05.
"""

from __future__ import annotations

import os
import re
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ASKED_AT_ONCE = 500
"""Maximum jobs of one query; their ids are arguments of sacct."""

_LARGEST_FIELD = 1024 * 1024
_PIECE = 24 * 1024
"""Bytes to split at once. Above 30,000 bytes, Python prepares the search again for each
delimiter.
"""

_MOST_DAMAGED = 4
"""Rows without a job id after which their fields are dropped."""

_MOST_REMEMBERED = 16_384

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

Text = TypeVar("Text")
Value = TypeVar("Value")


def new_delimiter() -> str:
    """Return a random delimiter that users can't guess."""
    return f"\x1f{os.urandom(12).hex()}\x1f"


def split_rows(parts: Iterable[bytes], delimiter: bytes, columns: int) -> Iterator[list[bytes]]:
    """Yield the rows of `columns` fields while the output arrives.

    Anything else, such as a damaged row or a line of a wrapper script, is yielded as a row of one
    field. Memory is bounded by the largest row.
    """
    fields: list[bytes] = []
    rest = b"\n"
    for part in chain(_cut(parts), (delimiter,)):  # the last one ends the last line break
        pieces = (rest + part).split(delimiter)
        rest = pieces.pop()
        if len(rest) > _LARGEST_FIELD:
            rest = rest[-_LARGEST_FIELD:]
        fields += pieces
        begin = 0
        while len(fields) - begin > columns:
            end = begin + columns
            first, second = fields[begin], fields[begin + 1]
            # True for all rows but damaged ones.
            if (
                first.rfind(b"\n") == 0
                and first[1:2].isdigit()
                and second[:1].isdigit()
                and b"\n" not in second
                and fields[end][:1] == b"\n"
            ):
                row = fields[begin:end]
                row[0] = first[1:]
                yield row
                begin = end
            else:
                found = _find_row(fields, begin)
                if found is None and len(fields) - begin < _MOST_DAMAGED * columns:
                    break
                damaged, begin = found or (fields[begin:-1], len(fields) - 1)
                yield from _join(damaged)
        del fields[:begin]
    yield from _join(fields)


def _find_row(fields: list[bytes], begin: int) -> tuple[list[bytes], int] | None:
    """Return the damaged fields from `begin` on, and the index of the row after them, if any.

    A line break and a job id are in front of the first field of a row, and an id of the second.
    """
    for index in range(begin, len(fields) - 1):
        before, line_break, name = fields[index].rpartition(b"\n")
        is_row = line_break and name[:1].isdigit() and fields[index + 1][:1].isdigit()
        if is_row and (index > begin or before):
            damaged = [*fields[begin:index], before]
            fields[index] = b"\n" + name
            return damaged, index
    return None


def _join(fields: list[bytes]) -> Iterator[list[bytes]]:
    """Yield a row of one field with all text, if there is any."""
    if text := b" ".join(fields).strip():
        yield [text]


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        if len(part) <= _PIECE:
            yield part
        else:
            yield from (part[begin : begin + _PIECE] for begin in range(0, len(part), _PIECE))


def readable(content: bytes) -> str:
    r"""Decode UTF-8; invalid bytes become `\xff`."""
    return content.decode("utf-8", "backslashreplace")


class Remembered(dict[Text, Value]):
    """Results of a function by text. At the maximum number of texts, all are dropped.

    Exceptions are not cached. This takes half the time of functools.lru_cache.
    """

    def __init__(self, function: Callable[[Text], Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: Text) -> Value:
        """Return and cache the result of the function. Raise as the function does."""
        value = self._function(text)
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        self[text] = value
        return value


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
