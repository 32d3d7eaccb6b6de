"""Parser for /proc/vmstat."""

from __future__ import annotations

import re

from ccagent.errors import UnparsableError

_LINE = re.compile(rb"^(\w+) ([0-9]{1,20})$", re.MULTILINE)


def parse_counters(content: bytes) -> dict[str, int]:
    """Return events, pages or KiB by name. Raise UnparsableError without any value."""
    found = {name.decode("ascii"): int(number) for name, number in _LINE.findall(content)}
    if not found:
        raise UnparsableError(f"no line with a name and a number: {content[:80]!r}")
    return found
