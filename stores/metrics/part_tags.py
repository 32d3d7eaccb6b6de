"""Tags that distinguish series of one level: mounts of a job, parts of an energy.

ClusterCockpit's store ignores such tags, and the last of several values wins. Here the tags name a
separate level, as `stype` and `stype-id` do: `mountpoint=/home,fstype=nfs` is the level
`mountpoint` `/home,fstype=nfs`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ccagent.log import printable
from ccagent.stores.metrics.line_keys import LONGEST_NAME, file_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import Path

MOUNT = ("mountpoint", "fstype", "source")
NETWORK = ("layer", "proto", "loopback")
JOB_ENERGY = ("part", "share")
NODE_ENERGY = ("part",)

_BY_NAME = {
    "job_energy": JOB_ENERGY,
    "node_energy": NODE_ENERGY,
    "node_energy_system": NODE_ENERGY,
    "node_energy_unallocated": NODE_ENERGY,
}
_BY_PREFIX = (("job_fs_", MOUNT), ("job_net_", NETWORK))

_DEEPEST = 4
"""Number of names in a path that queries can select: cluster, node, type and subtype."""

_DIGITS = 16
"""Digits of the digest that distinguishes shortened names."""


def known_part_tags(metric: str) -> tuple[str, ...]:
    """Return the tags that distinguish series of a metric of ccagent's agents."""
    found = _BY_NAME.get(metric)
    if found is None:
        for prefix, tags in _BY_PREFIX:
            if metric.startswith(prefix):
                return tags
    return found or ()


def add_part(path: Path, tags: Mapping[str, str], names: tuple[str, ...]) -> Path:
    """Return the path of a line's part below a level.

    Return the path unchanged without any of these tags, or if the level can't have parts.
    """
    if len(path) >= _DEEPEST:
        return path
    part = part_name(tags, names)
    return (*path, part) if part else path


def part_name(tags: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the name of a part, up to 255 bytes; empty without any of these tags."""
    found = [(name, _escape(tags[name])) for name in names if tags.get(name)]
    if not found:
        return ""
    (first, value), *others = found
    return _shorten("".join([first, value, *(f",{name}={text}" for name, text in others)]))


def read_part(name: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return the tags in the name of a part; None if the name starts with another tag."""
    if not name.startswith(names[0]):
        return None
    first, *others = name.removeprefix(names[0]).split(",")
    pairs = [other.partition("=") for other in others]
    found = {names[0]: first} | {key: value for key, _, value in pairs if key in names}
    return {key: _unescape(value) for key, value in found.items()}


def _escape(value: str) -> str:
    """Return a value with escaped commas, because commas separate tags."""
    return printable(value).replace("%", "%25").replace(",", "%2C")


def _unescape(text: str) -> str:
    return text.replace("%2C", ",").replace("%25", "%")


def _shorten(name: str) -> str:
    if len(name) <= LONGEST_NAME and len(file_name(name)) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    room, end = LONGEST_NAME - len(f"~{digest}"), 0
    for character in name[:room]:
        room -= len(file_name(character))
        if room < 0:
            break
        end += 1
    return f"{name[:end]}~{digest}"
