"""Parser for /proc/PID/mountinfo, the table of mounted file systems. See proc(5)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNTINFO = "proc/self/mountinfo"

_OCTAL = re.compile(r"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """A mounted file system.

    device: `major:minor`, the same for all mounts of a file system. options: options of the file
    system, separated by commas.
    """

    device: str
    point: str
    type: str
    source: str
    options: str = ""

    def option(self, name: str) -> str:
        """Return the value of an option `name=value`; empty if it is not set."""
        for option in self.options.split(","):
            key, _, value = option.partition("=")
            if key == name:
                return value
        return ""


def parse_mountinfo(content: bytes) -> list[Mount]:
    """Parse lines `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.

    Raise UnparsableError for other lines.
    """
    mounts: list[Mount] = []
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        if not line:
            continue
        head, _, tail = line.partition(" - ")
        fields, more = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(more) < 2:
            raise UnparsableError(f"not a mount: {line[:80]!r}")
        mounts.append(
            Mount(
                fields[2],
                unescape_name(fields[4]),
                more[0],
                unescape_name(more[1]),
                more[2] if len(more) > 2 else "",
            )
        )
    return mounts


def unescape_name(name: str) -> str:
    r"""Return a name with the kernel's escapes decoded, such as `\040` for a space."""
    if "\\" not in name:
        return name
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)


def find_mount(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the mount of a path without links: the one with the longest mount point."""
    best: Mount | None = None
    for mount in mounts:
        is_within = mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")
        # The last of several mounts at one mount point hides the others.
        if is_within and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
