"""Keys of lines: paths, times, file names of levels, and the metrics that a store accepts.

Some tags distinguish series of one level: mounts of a job, parts of an energy. ClusterCockpit's
store ignores them, and the last of several values wins. Here they name a separate level, as `stype`
and `stype-id` do: `mountpoint=/home,fstype=nfs` is the level `mountpoint` `/home,fstype=nfs`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, unquote

from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import Path

Aggregation = Literal["sum", "avg"]

WILDCARD = "*"
"""The name for all metrics that are not listed."""

LONGEST_NAME = 255
LAST_SECOND = 10**11
"""Times in seconds since 1970 are smaller."""

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

_KINDS = ("socket", "memoryDomain", "core", "hwthread", "accelerator", "die", "llc")
_TAGS = (("type", "type-id"), ("stype", "stype-id"))
_DEEPEST = 4
"""Number of names in a path that queries can select: cluster, node, type and subtype."""

_DIGITS = 16
"""Digits of the digest that distinguishes shortened names."""

_MOST_BYTES = 12
"""Maximum bytes of a percent-encoded character: four bytes of UTF-8, three characters each."""

_PLAIN = "".join(chr(c) for c in range(33, 127) if chr(c) not in "/%\\")
_LAST_MILLISECOND = 10**14
_LAST_MICROSECOND = 10**17
_NANOSECONDS = 10**9


def file_name(name: str) -> str:
    """Return the name of the file or directory for a cluster or node.

    Names that are not plain file names, such as `..` or `a/b`, are percent-encoded. No name can
    lead out of a directory. For names accepted by `level_path`, the result has up to 255 bytes.
    """
    quoted = quote(name, safe=_PLAIN)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def original_name(found: str) -> str:
    """Return the cluster or node of a file or directory name."""
    name = unquote(found)
    return name if file_name(name) == found else found


def level_path(tags: Mapping[str, str], cluster: str) -> Path:
    """Return the path of a line's level. cluster: default for lines without a tag `cluster`.

    Raise ValueError with the reason if node or cluster are missing, or a name is too long.
    """
    cluster = tags.get("cluster", cluster)
    node = tags.get("hostname", tags.get("host", ""))
    if not cluster:
        raise ValueError("no tag cluster, and no default cluster")
    if not node:
        raise ValueError("no tag hostname")
    kind = tags.get("type", "node")
    number = tags.get("type-id", "")
    part = tags.get("stype", "") + tags.get("stype-id", "")
    name = number if kind == "node" else kind + number
    # Unlike the reference, keep `stype` of a node: there it overwrites the node's value.
    path = tuple(text for text in (cluster, node, name, part) if text)
    for text in path:
        check_name(text)
    return path


def level_tags(path: tuple[str, ...]) -> dict[str, str]:
    """Return the tags of a level, of which `level_path` makes the same path."""
    cluster, node, *parts = path
    tags = {"cluster": cluster, "hostname": node, "type": "node"}
    for part, (kind, number) in zip(parts, _TAGS, strict=False):
        name = next((one for one in _KINDS if part.startswith(one)), None)
        if name is None or len(part) == len(name):
            tags |= {number: part}
        else:
            tags |= {kind: name, number: part[len(name) :]}
    return tags


def check_name(name: str) -> None:
    """Raise ValueError if a name is too long.

    Names of clusters and nodes are directory names. Binary checkpoints have a limit for all names.
    """
    if len(name) * _MOST_BYTES > LONGEST_NAME and len(file_name(name)) > LONGEST_NAME:
        raise ValueError(f"a name has more than {LONGEST_NAME} bytes: {name[:40]}...")


def seconds(time: int) -> int:
    """Return a time in s, ms, us or ns since 1970 as whole seconds.

    The size determines the unit: 100,000,000,000 s is in the year 5138, as many ms are in 1973.
    """
    size = abs(time)
    if size < LAST_SECOND:
        return time
    if size < _LAST_MILLISECOND:
        return time // 1000
    if size < _LAST_MICROSECOND:
        return time // 1_000_000
    return time // _NANOSECONDS


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


class StoredMetric(NamedTuple):
    """Configuration of a metric. frequency: seconds from one value to the next.

    tags: tags that distinguish series of one level; None: the tags of ccagent's agents.
    """

    frequency: int
    aggregation: Aggregation | None
    tags: tuple[str, ...] | None = None


class MetricCatalogue:
    """The configured metrics by name. With `*` the catalogue contains every name."""

    def __init__(self, metrics: Mapping[str, StoredMetric]) -> None:
        self._metrics = {name: one for name, one in metrics.items() if name != WILDCARD}
        self._other = metrics.get(WILDCARD)

    def get(self, name: str) -> StoredMetric | None:
        """Return the configuration of a metric; None if the store does not accept it."""
        return self._metrics.get(name, self._other)

    def part_tags(self, name: str) -> tuple[str, ...]:
        """Return the tags that distinguish series of a metric at one level."""
        known = self.get(name)
        if known is None or known.tags is None:
            return known_part_tags(name)
        return known.tags

    def is_listed(self, name: str) -> bool:
        """Return whether a metric is configured by name, not by `*`."""
        return name in self._metrics
