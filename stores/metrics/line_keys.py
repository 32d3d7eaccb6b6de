"""Where the value of a line belongs: the path of levels that its tags name, and its files."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import Path


LONGEST_NAME = 255
_MOST_BYTES = 12
"""Bytes of a character in the name of a file: four with a percent sign each."""
_PLAIN = "".join(chr(c) for c in range(33, 127) if chr(c) not in "/%\\")


def file_name(name: str) -> str:
    """Return the name of a file or directory that stands for a name.

    A name that is no plain name of a file, such as `..` or `a/b`, is written with percent signs, so
    that no name leads out of a directory. It has up to 255 bytes if `level_path` accepts it.
    """
    quoted = quote(name, safe=_PLAIN)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def original_name(found: str) -> str:
    """Return the name that a file or directory stands for."""
    name = unquote(found)
    return name if file_name(name) == found else found


def level_path(tags: Mapping[str, str], cluster: str) -> Path:
    """Return the path of the level that tags name; without a tag `cluster` it is that one.

    Raises ValueError with the reason if there is no node or no cluster, or a name is too long.
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
    # The reference forgets a part of a node, so that several write into the node's own value.
    path = tuple(text for text in (cluster, node, name, part) if text)
    for text in path:
        check_name(text)
    return path


def check_name(name: str) -> None:
    """Raise ValueError if a name is too long.

    Names of clusters and nodes are those of directories; a binary checkpoint has no long ones.
    """
    if len(name) * _MOST_BYTES > LONGEST_NAME and len(file_name(name)) > LONGEST_NAME:
        raise ValueError(f"a name has more than {LONGEST_NAME} bytes: {name[:40]}...")
