"""InfiniBand ports below /sys/class/infiniband: their paths and states."""

from __future__ import annotations

import re

from ccagent.errors import UnparsableError

DEVICES = "sys/class/infiniband"

ACTIVE = 4
"""The state of an active port."""

_STATE = re.compile(rb"\s*(\d{1,3}):")


def parse_state(content: bytes) -> int:
    """Parse the state of a port, `4: ACTIVE`. Raise UnparsableError for other text."""
    match = _STATE.match(content)
    if match is None:
        raise UnparsableError(f"not a state: {content[:80]!r}")
    return int(match[1])
