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
    """A chip. number: N of its directory hwmonN. name: empty without one.

    directory: of its name, hwmonN or hwmonN/device. files: their names.
    """

    number: int
    name: str
    directory: str
    files: list[str]


def list_chips(node: Node, names: list[str], errors: list[str]) -> Iterator[HwmonChip]:
    """Yield the chips by number; an unreadable chip adds to `errors`.

    names: names in /sys/class/hwmon.
    """
    for number in sorted(int(found[1]) for found in map(_DIRECTORY.fullmatch, names) if found):
        try:
            name, directory = _read_name(node, f"{HWMON}/hwmon{number}")
            yield HwmonChip(number, name, directory, node.list(directory))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))


def list_files(node: Node, chip: HwmonChip) -> Iterator[tuple[str, list[str]]]:
    """Yield hwmonN and hwmonN/device with the names of their files; skip what is missing.

    Drivers may have a name in the first and sensors in the second.
    """
    own = f"{HWMON}/hwmon{chip.number}"
    for directory in (own, f"{own}/device"):
        try:
            files = chip.files if directory == chip.directory else node.list(directory)
        except CcagentError:
            continue
        yield directory, files


def _read_name(node: Node, own: str) -> tuple[str, str]:
    """Return the name of a chip, and the directory of the name."""
    # Before Linux 3.15 the files were in the directory of the device.
    for directory in (own, f"{own}/device"):
        try:
            name = node.read_single(f"{directory}/name")
        except NotHereError:
            continue
        return clean_label(name.decode("ascii", "replace"), _LONGEST_LABEL), directory
    return "", own


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
