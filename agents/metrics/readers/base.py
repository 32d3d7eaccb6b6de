"""What readers of metrics give: gauges and counters of parts of a node, in base units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

Type = Literal["node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator"]
"""The parts of a node that have metrics, in the words of ClusterCockpit."""


class Place(NamedTuple):
    """What a value belongs to. type_id: empty for the node, else the number in the topology.

    stype, stype_id: a part of that, such as a network interface; a job.
    """

    type: Type = "node"
    type_id: str = ""
    stype: str = ""
    stype_id: str = ""


NODE = Place()


class Gauge(NamedTuple):
    """A value as it is now."""

    metric: str
    value: float
    place: Place = NODE


NEW = -1
"""Stands for `wraps_at` of a counter that started at 0 since the reading before."""


class Count(NamedTuple):
    """A counter, of which the growth in a second is the metric.

    wraps_at: after the largest value comes 0 again; 0: it is wide enough, one that is less has
    restarted; NEW: it started at 0 since the reading before, so that its first interval counts.
    """

    metric: str
    value: int
    place: Place = NODE
    wraps_at: int = 0


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """What a metric is.

    unit: a base unit: B, B/s, s, Hz, W, V, A, %, degC, rpm, Flops/s, 1/s, or empty. type: of the
    smallest part that it is told of. aggregation: how values of parts make one of the whole.
    scale: what the growth of a counter in a second is multiplied by. source: file and field.
    is_default: sent unless it is left out.
    """

    unit: str
    type: Type
    description: str
    source: str
    aggregation: Literal["sum", "mean", "max"] = "sum"
    scale: float = 1.0
    is_default: bool = True


class ReaderSettings(Settings, frozen=True, kw_only=True):
    """The keys of every table [agents.metrics.READER]."""

    every: Annotated[
        Duration, Meta(description="read it this often only; 0s: with every sample")
    ] = Duration("0s")


S = TypeVar("S", bound=ReaderSettings)


class Reader(ABC, Generic[S]):
    """Reads what belongs together. State between readings lives in it, and is bounded.

    errors: what of the last reading is worth a message. absent: by metric, why it can't be had.
    wanted: the metrics that are sent or computed with, where the reader can save others; None: all.
    is_patient: True if no later sample follows, so that the reader waits for slow sources.
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, Metric]]
    Settings: ClassVar[type[Any]] = ReaderSettings
    has_own_pace: ClassVar[bool] = False
    """Whether it is asked with every sample and observes its key `every` itself."""

    def __init__(self, settings: S | None = None) -> None:
        self.settings: S = self.Settings() if settings is None else settings
        self.errors: list[str] = []
        self.absent: dict[str, str] = {}
        self.wanted: frozenset[str] | None = None
        self.is_patient = False

    @property
    def is_wanted(self) -> bool:
        """Return whether any of its metrics is sent or computed with."""
        return self.wanted is None or not self.wanted.isdisjoint(self.metrics)

    def checks(self, node: Node) -> Iterable[Check]:  # noqa: ARG002 - for those that need something
        """Return what its metrics need of the machine, for `ccagent doctor`."""
        return ()

    def begin(self, node: Node) -> None:
        """Told before any reader of a sample reads, for those that wait for others' answers."""

    @abstractmethod
    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read once. Raises NotHereError where the machine has no such thing, else CcagentError."""

    def expected(self, node: Node) -> dict[str, Type]:  # noqa: ARG002 - for those that differ
        """Return by metric the type of what the daemon sends although there is no value now."""
        return {}

    def close(self) -> None:
        """Let go of what is held open."""
