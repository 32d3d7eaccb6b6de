"""Parsers of the files of a control group.

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux.
"""

from __future__ import annotations

import re
from functools import cache

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

# LONG_MAX, rounded down to pages of up to 64 KiB.
_NO_LIMIT = 2**63 - 2**16
_IO = re.compile(rb"\b(?:([0-9]{1,4}:[0-9]{1,7})|([rRwW])(?:bytes=|ead |rite )([0-9]{1,20}))\b")


def parse_amount(content: bytes) -> int:
    """Parse a file of one number. Raise UnparsableError for other content."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return _uint(text)


def parse_limit(content: bytes) -> int | None:
    """Parse memory.max or memory.limit_in_bytes: B; None: no limit. Raise UnparsableError."""
    if content.strip() == b"max":
        return None
    limit = parse_amount(content)
    return limit if limit < _NO_LIMIT else None


def parse_fields(content: bytes, wanted: dict[bytes, tuple[str, int]]) -> dict[str, int]:
    """Parse lines `name number` of cpu.stat, memory.events and memory.oom_control.

    wanted: field and factor by name; missing lines are omitted. Raise UnparsableError for a number
    out of range.
    """
    found = dict(_lines_of(tuple(wanted)).findall(b"\n" + content))
    return {
        called: _uint(found[name]) * factor
        for name, (called, factor) in wanted.items()
        if name in found
    }


@cache
def _lines_of(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for the lines of these names only: memory.stat has many others."""
    return re.compile(rb"\n(" + b"|".join(map(re.escape, names)) + rb") ([0-9]{1,20})(?![^\n])")


def parse_io(content: bytes) -> dict[str, tuple[int, int]]:
    """Parse io.stat, v1 blkio.*io_service_bytes_recursive: B read, written by `major:minor`.

    Lines `8:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0`, or `8:0 Read 1` and `8:0 Write 2`.
    Some kernels omit the line break after an idle device. A device `(unknown)` is omitted. Raise
    UnparsableError for a number out of range.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in content.split(b"\n"):
        device = ""
        for name, way, number in _IO.findall(line):
            if name:
                device = name.decode("ascii")
            elif device:
                read, written = found.get(device, (0, 0))
                value = _uint(number)
                found[device] = (value, written) if way in b"rR" else (read, value)
    return found


def _uint(digits: bytes) -> int:
    number = int(digits)
    if number > LARGEST_UINT:
        raise UnparsableError(f"a number is out of range: {number}")
    return number
