"""Parser for /proc/PID/mountinfo, the table of mounted file systems. See proc(5)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def parse_visible_mounts(content: bytes) -> list[Mount]:
    """Parse the table without mounts that a path can't reach. Raise as `parse_mountinfo` does.

    A mount hides its parent if both have the same point, those of the same parent at points below
    its own, and mounts within these. The last line of a point may be a hidden one: the kernel puts
    a mount that another namespace propagates below a mount that is there.
    """
    mounts = parse_mountinfo(content)
    numbers = [line.split(b" ", 2)[:2] for line in content.split(b"\n") if line]
    known = {
        number: (parent, mount.point)
        for (number, parent), mount in zip(numbers, mounts, strict=True)
    }
    points: dict[bytes, set[str]] = {}
    for parent, point in known.values():
        points.setdefault(parent, set()).add(point)
    under = {
        parent
        for number, (parent, point) in known.items()
        if parent in known and known[parent][1] == point and parent != number
    }
    # The kernel omits what is below `/`'s own mount point.
    covered = {
        number
        for number, (parent, point) in known.items()
        if any(point[:end] in points[parent] for end in _ends_above(point))
    }

    def is_hidden(number: bytes) -> bool:
        seen: set[bytes] = set()
        while number in known and number not in seen:
            if number in covered:
                return True
            seen.add(number)
            number = known[number][0]
        return False

    return [
        mount
        for (number, _), mount in zip(numbers, mounts, strict=True)
        if number not in under and not is_hidden(number)
    ]


def _ends_above(point: str) -> Iterator[int]:
    """Yield the lengths of the paths between `/` and a mount point."""
    return (end for end, character in enumerate(point) if character == "/" and end)


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
