"""Where the value of a line belongs: the path of levels that its tags name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import Path


def level_path(tags: Mapping[str, str], cluster: str) -> Path:
    """Return the path of the level that tags name; without a tag `cluster` it is that one.

    Raises ValueError with the reason if there is no node or no cluster.
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
    return tuple(text for text in (cluster, node, name, part) if text)
