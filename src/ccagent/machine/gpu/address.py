"""Addresses of PCI devices in the format of records: `00000000:0E:00.0`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_FORM = re.compile(r"([0-9A-F]{4,8}):([0-9A-F]{2}):([0-9A-F]{2}\.[0-7])", re.ASCII)


def parse_address(text: str) -> str:
    """Return an address in upper case, with eight digits of domain; empty if invalid."""
    match = _FORM.fullmatch(text.strip().upper())
    return "" if match is None else f"{match[1].zfill(8)}:{match[2]}:{match[3]}"


def list_addresses(node: Node, directory: str) -> list[str]:
    """Return the sorted addresses among the names in a directory; none if listing fails."""
    try:
        names = node.list(directory)
    except CcagentError:
        return []
    return sorted(filter(None, map(parse_address, names)))
