"""Limits of the parts named by tags. Users choose the names of mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.log import logger, printable

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import Path
    from ccagent.stores.metrics.store import MetricStore

OF_A_LEVEL = 100
"""Maximum parts of a level. The kernel programs distinguish 64 mounts of a job."""

OF_A_NODE = 10_000
_NODE = 2
"""Number of names in a node's path."""


class PartLimits:
    """Limits the number of parts of each job or other level, and of each node."""

    def __init__(self, store: MetricStore, of_node: int = OF_A_NODE) -> None:
        self.refused = 0
        """Number of new parts beyond the limits."""
        self._store = store
        self._of_node = of_node
        self._children: dict[Path, int] = {}
        """Number of children by level, including new parts of the message."""
        self._parts: dict[Path, int] = {}
        """Number of parts by node, including new parts of the message."""
        self._new: set[Path] = set()

    def begin(self) -> None:
        """Start a message. Parts of earlier messages are in the store or were released."""
        self._children.clear()
        self._parts.clear()
        self._new.clear()

    def admit(self, path: Path) -> bool:
        """Return whether a part may have series: it exists, or the limits permit it."""
        if path in self._new or self._store.root.find(path) is not None:
            return True
        level, node = path[:-1], path[:_NODE]
        in_level, in_node = self._count_children(level), self._count_parts(node)
        # A node's children include its parts, sockets, cards and jobs.
        if in_level >= (OF_A_LEVEL if level != node else self._of_node) or in_node >= self._of_node:
            self.refused += 1
            self._complain(path)
            return False
        self._new.add(path)
        self._children[level] = in_level + 1
        self._parts[node] = in_node + 1
        return True

    def _count_children(self, path: Path) -> int:
        if path not in self._children:
            level = self._store.root.find(path)
            self._children[path] = 0 if level is None else len(level.children)
        return self._children[path]

    def _count_parts(self, path: Path) -> int:
        if path not in self._parts:
            node = self._store.root.find(path)
            below = node.children.values() if node is not None else ()
            self._parts[path] = sum(len(one.children) for one in below)
        return self._parts[path]

    def _complain(self, path: Path) -> None:
        logger.warning(
            "%s has too many mounts or other parts; further parts are skipped, such as %s",
            printable(" ".join(path[:-1])), printable(path[-1]), key="store parts",
        )  # fmt: skip
