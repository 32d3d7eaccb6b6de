"""Paths of levels from the tags of lines, and file names for the names of levels."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import Path


LONGEST_NAME = 255
_MOST_BYTES = 12
"""Maximum bytes of a percent-encoded character: four bytes of UTF-8, three characters each."""
_PLAIN = "".join(chr(c) for c in range(33, 127) if chr(c) not in "/%\\")


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


def check_name(name: str) -> None:
    """Raise ValueError if a name is too long.

    Names of clusters and nodes are directory names. Binary checkpoints have a limit for all names.
    """
    if len(name) * _MOST_BYTES > LONGEST_NAME and len(file_name(name)) > LONGEST_NAME:
        raise ValueError(f"a name has more than {LONGEST_NAME} bytes: {name[:40]}...")
