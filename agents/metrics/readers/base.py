"""Base of readers: gauges and counters of scopes in base units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.machine.parsed import FileErrors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


ScopeType = Literal[
    "node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator"
]
"""Types of scopes, by ClusterCockpit's names."""


class Scope(NamedTuple):
    """Scope of a value. type_id: number in the topology, empty for the node.

    stype, stype_id: a part of the scope, such as a network interface or a job.
    """

    type: ScopeType = "node"
    type_id: str = ""
    stype: str = ""
    stype_id: str = ""


NODE = Scope()


class Gauge(NamedTuple):
    """A current value."""

    metric: str
    value: float
    scope: Scope = NODE


class Count(NamedTuple):
    """A counter; the metric is its rate.

    wraps_at: largest value before the counter wraps to 0. With 0 it never wraps. With NEW of
    machine/counters.py it started at 0 after the previous reading, and its first interval counts.
    """

    metric: str
    value: int
    scope: Scope = NODE
    wraps_at: int = 0


class Metric(msgspec.Struct, frozen=True):
    """Definition of a metric.

    unit: a base unit: B, B/s, s, Hz, W, V, A, %, degC, rpm, Flops/s, 1/s, or empty. type: type of
    the smallest scope. aggregation: combines values of parts to a value of the whole. scale: factor
    of the rate of a counter. source: file and field. is_default: sent unless excluded.
    """

    unit: str
    type: ScopeType
    description: str
    source: str
    aggregation: Literal["sum", "mean", "max"] = "sum"
    scale: float = 1.0
    is_default: bool = True


class ReaderSettings(Settings, frozen=True, kw_only=True):
    """The keys of every table [agents.metrics.READER]."""

    every: Annotated[Duration, Meta(description="interval of this reader; 0s: every sample")] = (
        Duration("0s")
    )


S = TypeVar("S", bound=ReaderSettings)


class Reader(FileErrors, ABC, Generic[S]):
    """Reads one subject. State between readings is bounded.

    errors: messages of the last reading. absent: reason by unavailable metric. wanted: metrics that
    are sent or used in expressions; None: all. is_patient: no later sample follows; wait for slow
    sources. interval: seconds between readings, 0 if unknown.
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, Metric]]
    Settings: ClassVar[type[Any]] = ReaderSettings
    has_own_pace: ClassVar[bool] = False
    """True if the reader applies its key `every` itself."""
    is_exposed: ClassVar[bool] = True
    """False if Prometheus gets it only on demand: it is costly, or another collector's subject."""

    def __init__(self, settings: S | None = None) -> None:
        super().__init__()
        self.settings: S = self.Settings() if settings is None else settings
        self.absent: dict[str, str] = {}
        self.wanted: frozenset[str] | None = None
        self.is_patient = False
        self.interval = 0.0

    @property
    def is_wanted(self) -> bool:
        """Return whether any metric of the reader is sent or used in an expression."""
        return self.wanted is None or not self.wanted.isdisjoint(self.metrics)

    def checks(self, node: Node) -> Iterable[Check]:  # noqa: ARG002 - used by overrides
        """Return the checks of the machine for `ccagent doctor`."""
        return ()

    def begin(self, node: Node) -> None:
        """Start slow queries. Called before `read` of any reader in a sample."""

    @abstractmethod
    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Return the values.

        Raise NotHereError without the device, CcagentError if reading fails.
        """

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Return the values for Prometheus: counters of parts since boot, no shares.

        The metric is the rate of a counter times its scale, as for `read`. Raise as `read` does.
        """
        return self.read(node)

    def list_pending(self, node: Node) -> dict[str, ScopeType]:  # noqa: ARG002 - used by overrides
        """Return the types of metrics without a value yet that will be sent, by metric."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return this reader's fields of the daemon's status. Any thread may call this."""
        return {}

    def close(self) -> None:
        """Close open files and processes."""


LONGEST_TAG = 256


def is_sendable(text: str) -> bool:
    """Return whether a text is empty or a valid tag value in line protocol."""
    return text.isprintable() and not text.endswith("\\") and len(text) <= LONGEST_TAG
