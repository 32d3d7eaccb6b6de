"""Pressure stall information, of the node and of control groups.

Source: Documentation/accounting/psi.rst of Linux.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

_LINE = re.compile(rb"^(some|full) avg10=(\d{1,3}\.\d{2}) .*total=(\d{1,20})$", re.MULTILINE)


class Pressure(NamedTuple):
    """avg10: percent, mean of about ten seconds. total: us since boot."""

    avg10: float
    total: int


def parse_pressure(content: bytes) -> dict[str, Pressure]:
    """Parse /proc/pressure/* or *.pressure. Return the lines `some` and `full`, if present.

    Lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`. Raise UnparsableError for other content.
    """
    found: dict[str, Pressure] = {}
    for extent, average, total in _LINE.findall(content):
        pressure = Pressure(float(average), int(total))
        if pressure.avg10 > 100 or pressure.total > LARGEST_UINT:
            raise UnparsableError(f"out of range: {average!r} or {total!r}")
        found[extent.decode("ascii")] = pressure
    if not found:
        raise UnparsableError(f"neither some nor full: {content[:80]!r}")
    return found
