"""The chips with sensors, from /sys/class/hwmon.

Source: Documentation/hwmon/sysfs-interface.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

HWMON = "sys/class/hwmon"
_DIRECTORY = re.compile(r"hwmon([0-9]{1,6})", re.ASCII)
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_LONGEST_LABEL = 64


class HwmonChip(NamedTuple):
    """A chip. number: N of its directory hwmonN. directory: of its files. files: their names."""

    number: int
    name: str
    directory: str
    files: list[str]


def list_chips(node: Node, names: list[str], errors: list[str]) -> Iterator[HwmonChip]:
    """Yield the chips that have a name, by number; an unreadable chip adds to `errors`.

    names: names in /sys/class/hwmon.
    """
    for number in sorted(int(found[1]) for found in map(_DIRECTORY.fullmatch, names) if found):
        directory = f"{HWMON}/hwmon{number}"
        try:
            try:
                name = node.read_single(f"{directory}/name")
            except NotHereError:
                # Before Linux 3.15 the files were in the directory of the device.
                directory += "/device"
                name = node.read_single(f"{directory}/name")
            chip = clean_label(name.decode("ascii", "replace"), _LONGEST_LABEL)
            if chip:
                yield HwmonChip(number, chip, directory, node.list(directory))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))


def parse_sensor(content: bytes) -> int:
    """Parse a value, a limit or a flag: one integer. Raise UnparsableError for other content."""
    text = content.strip()
    if _NUMBER.fullmatch(text) is None:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return int(text)


def parse_label(content: bytes) -> str:
    """Parse a name or a label as a value of a tag. Raise UnparsableError if it is empty."""
    kept = clean_label(content.decode("ascii", "replace"), _LONGEST_LABEL)
    if not kept:
        raise UnparsableError("empty")
    return kept


def clean_label(text: str, longest: int = 255) -> str:
    """Return a name as a tag value: printable ASCII of at most `longest` characters.

    A question mark replaces every other character, quotation marks and backslashes. The result is
    empty if nothing is left.
    """
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '\\"' else "?"
        for letter in text.strip()
    )[:longest].strip()
