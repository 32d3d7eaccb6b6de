"""Parser for /proc/loadavg."""

from __future__ import annotations

from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT


class Load(NamedTuple):
    """The fields of /proc/loadavg, without the last pid."""

    load1: float
    load5: float
    load15: float
    runnable: int
    existing: int


def parse_loadavg(content: bytes) -> Load:
    """Parse `0.20 0.18 0.12 1/80 11206`. Raise UnparsableError for other text."""
    fields = content.split()
    try:
        runnable, existing = map(int, fields[3].split(b"/"))
        load = Load(float(fields[0]), float(fields[1]), float(fields[2]), runnable, existing)
    except (ValueError, IndexError) as error:
        raise UnparsableError(f"not three loads and two counts: {content[:80]!r}") from error
    if not all(0 <= each < 1e9 for each in load[:3]) or not all(
        0 <= each <= LARGEST_UINT for each in load[3:]
    ):
        raise UnparsableError(f"out of range: {content[:80]!r}")
    return load
