"""Parser for /proc/meminfo and the files meminfo of NUMA nodes."""

from __future__ import annotations

import re

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

_LINE = re.compile(
    rb"^(?:Node [0-9]+ )?([\x21-\x39\x3b-\x7e]+): *([0-9]{1,18})(?: kB)?\n", re.MULTILINE
)
"""The usual form of a line. Files with other lines are parsed line by line."""


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Return KB by name, or a count for `HugePages_*`. Raise UnparsableError for other lines.

    Lines of NUMA nodes, `Node 0 MemFree: 1 kB`, have the same names.
    """
    found = _LINE.findall(content)
    if len(found) == content.count(b"\n"):
        return {name.decode("ascii"): int(number) for name, number in found}
    values: dict[str, int] = {}
    for line in content.splitlines():
        name, colon, rest = line.partition(b":")
        number = rest.split()[:1]
        if not colon or not number:
            continue
        try:
            key = name.decode("ascii").rpartition(" ")[2]
            value = values[key] = int(number[0])
        except ValueError as error:
            raise UnparsableError(f"not a number: {line[:80]!r}") from error
        if not 0 <= value <= LARGEST_UINT:
            raise UnparsableError(f"out of range: {line[:80]!r}")
    return values


def compute_used_memory(meminfo: dict[str, int]) -> int:
    """Return KB in use: MemTotal - MemAvailable. Kernels before 3.14 lack MemAvailable."""
    try:
        total = meminfo["MemTotal"]
        available = meminfo.get("MemAvailable")
        if available is None:
            available = meminfo["MemFree"] + meminfo["Buffers"] + meminfo["Cached"]
    except KeyError as error:
        raise UnparsableError(f"no {error.args[0]}") from error
    return max(0, total - available)
