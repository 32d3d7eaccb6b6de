"""Limits of new series: of the store, its memory, a sender, and the parts named by tags."""

from __future__ import annotations

from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ccagent.config.duration import parse_size
from ccagent.log import logger, printable
from ccagent.machine.node import Node
from ccagent.machine.own_memory import find_permitted_memory, read_resident
from ccagent.stores.budgets import HourlyBudget
from ccagent.stores.metrics.settings import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.groups import Path
    from ccagent.stores.metrics.store import MetricStore

_BLOCK = 4096
"""Bytes of the values of a series: 512 at a time."""

_OF_SENDER = 2
"""Part of the memory for values that the new series of one sender may have: a half.

A store keeps several blocks of each series: its own senders need less.
"""

_OF_VALUES = 2
"""Part of the memory for values with `memory-cap = "auto"`: a half."""

_BETWEEN = 0.02
"""Seconds between two readings of the memory."""

_OF_SERIES = 0.8
"""Share of the memory that the process may use before it refuses new series."""


class SeriesRefusal(NamedTuple):
    """Why a new series or job is refused. status: of the HTTP response.

    seconds: after which the sender may try again; 0: unknown.
    """

    status: HTTPStatus
    reason: str
    seconds: int = 0


class MemoryPlan(NamedTuple):
    """Limits in bytes; 0: no limit. values: of the values. process: of the whole process."""

    values: int
    process: int

    @property
    def series_of_sender(self) -> int:
        """Return how many series one sender may make during the retention; 0: no limit."""
        return self.values // (_OF_SENDER * _BLOCK)


class SeriesLimits:
    """Admits new series.

    most: of the store. of_node: of a sender for a node in an hour. of_sender: of a sender in all
    nodes during the retention, so that invented nodes help nobody; 0: no limit. memory: bytes of
    the process beyond which new series are refused; 0: no limit. retention: in s.
    """

    def __init__(
        self,
        store: MetricStore,
        *,
        most: int = 10_000_000,
        of_node: int = 20_000,
        of_sender: int = 0,
        retention: float = 0,
        memory: int = 0,
        resident: Callable[[], int] = read_resident,
    ) -> None:
        self.refused = 0
        """Number of refused new series."""
        self._store = store
        self._most = most
        self._of_node = HourlyBudget(of_node, store.now)
        self._of_sender = HourlyBudget(of_sender, store.now, max(1, int(retention) // 3600))
        self._memory = memory
        self._resident = resident
        self._is_short = False
        self._read = -_BETWEEN

    def begin(self) -> None:
        """Start a group of new series: read the memory, which grows little in `_BETWEEN`."""
        if self._memory and monotonic() - self._read > _BETWEEN:
            self._read = monotonic()
            self._is_short = self._resident() > self._memory
            if self._is_short:
                logger.error(
                    "memory: the store uses more than %d MB: new series are refused",
                    self._memory >> 20,
                )

    def admit(
        self, sender: str, cluster: str, node: str, stored: int, wanted: int = 1
    ) -> tuple[int, SeriesRefusal | None]:
        """Count new series of a node. Return how many are admitted, and why the others are not.

        stored: number of series of the store.
        """
        count, refusal = wanted, self._find_refusal(stored + wanted - 1)
        if refusal is not None:
            count = 0 if self._find_refusal(stored) else self._most - stored
        taken, reason = self._take(sender, cluster, node, count)
        self.refused += wanted - taken
        return taken, reason or refusal

    def _take(
        self, sender: str, cluster: str, node: str, wanted: int
    ) -> tuple[int, SeriesRefusal | None]:
        """Take series from the budgets of their sender."""
        name = printable(sender) or "this sender"
        of_sender = self._of_sender
        of_all = of_sender.take_some(sender, wanted) if of_sender.most else wanted
        count = self._of_node.take_some((sender, cluster, node), of_all)
        of_sender.give_back(sender, of_all - count)
        if count < of_all:
            return count, SeriesRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{name} has made {self._of_node.most} series of {printable(node)} in this hour"
                " (limits.new-series): new series are refused",
                self._of_node.seconds_left(),
            )
        if count < wanted:
            return count, SeriesRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{name} has made {of_sender.most} series during the retention, for half of"
                " memory-cap: new series are refused",
                of_sender.seconds_left(),
            )
        return count, None

    def _find_refusal(self, count: int) -> SeriesRefusal | None:
        if self._store.is_full:
            return SeriesRefusal(
                HTTPStatus.INSUFFICIENT_STORAGE, "values exceed memory-cap: new series are refused"
            )
        if self._is_short:
            return SeriesRefusal(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"the store uses more than {self._memory >> 20} MB: new series are refused",
            )
        if count >= self._most:
            return SeriesRefusal(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"the store has {self._most} series (limits.series): new series are refused",
            )
        return None


def plan_memory(cap: str, node: Node | None = None) -> MemoryPlan:
    """Return the limits of memory for a `memory-cap`.

    They derive from the memory of the machine, or of the control group if it has less.
    """
    values = 0 if cap == AUTO else parse_size(cap)
    if cap != AUTO and not values:
        return MemoryPlan(0, 0)
    memory = find_permitted_memory(node or Node())
    return MemoryPlan(values or memory // _OF_VALUES, int(memory * _OF_SERIES))


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
