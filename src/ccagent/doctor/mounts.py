"""Mounted file systems with their options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a file system is mounted, its type, and the options of the file system itself."""

    point: str
    type: str
    options: tuple[str, ...]

    def option(self, name: str) -> str:
        """Give the value of an option `name=value`; empty if it isn't set."""
        for option in self.options:
            key, equals, value = option.partition("=")
            if key == name and equals:
                return value
        return ""


def parse_mounts(content: bytes) -> list[Mount]:
    """Parse /proc/self/mountinfo, see proc(5); what isn't a line of it is left out."""
    mounts: list[Mount] = []
    for line in content.decode("utf-8", "replace").split("\n"):
        head, _, tail = line.partition(" - ")
        fields, more = head.split(" "), tail.split(" ")
        if len(fields) >= 6 and len(more) >= 3:
            mounts.append(Mount(_plain(fields[4]), more[0], tuple(more[2].split(","))))
    return mounts


def read_mounts(node: Node) -> list[Mount]:
    """Read what is mounted. Raises as Node.read does."""
    return read_parsed(node, "proc/self/mountinfo", parse_mounts)


def mounted_at(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Give the file system that a path without links lies in: of the longest mount point."""
    best: Mount | None = None
    for mount in mounts:
        within = mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")
        # Of several at one point the last hides the others.
        if within and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _plain(name: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)
