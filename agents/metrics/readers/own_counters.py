"""Reader of ccagent's own counters: agents, sinks, CPU time and memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Literal

from ccagent.agents.metrics.readers.base import (
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
    is_sendable,
)
from ccagent.errors import NotHereError
from ccagent.machine.counters import Sums
from ccagent.machine.own_memory import read_resident

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccagent.agents.metrics.readers.base import ScopeType
    from ccagent.machine.node import Node

_AGENTS = ("samples", "errors", "skipped", "cpu")
_SINKS = ("queued", "sent", "acknowledged", "retried", "rejected", "dropped")
_BACKLOG = ("backlog", "backlog_bytes")
_OF_PROCESS = "cpu"
"""Has no sum over the agents: the CPU time of the process is larger."""
_MICRO = 1_000_000

_MEANINGS = {
    "samples": "completed samples",
    "errors": "failed samples",
    "skipped": "samples skipped because the previous sample still ran",
    "cpu": "CPU time of samples",
    "queued": "messages added to the queues",
    "sent": "messages passed to the transport, including repetitions",
    "acknowledged": "messages acknowledged by the receiver",
    "retried": "messages to send again after a failure",
    "rejected": "dead letters: messages rejected by the receiver",
    "dropped": "messages dropped because the queue was full or they were too old",
    "backlog": "messages in the queues",
    "backlog_bytes": "bytes in the queues",
}
_UNITS = {"cpu": "%", "backlog": "", "backlog_bytes": "B"}
_SCALES = {"cpu": 100 / _MICRO}
_FIELDS = {"cpu": "cpu-seconds"}
_DEFAULT = frozenset({"errors", "backlog", "dropped"})


def _metrics() -> dict[str, Metric]:
    found = {
        "ccagent_cpu": Metric(
            unit="%",
            type="node",
            description="CPU time of ccagent's process; 100 is one cpu",
            source="clock_gettime, CLOCK_PROCESS_CPUTIME_ID",
            scale=100 / _MICRO,
        ),
        "ccagent_mem_used": Metric(
            "B", "node", "resident memory of ccagent's process", "/proc/self/statm, resident"
        ),
    }
    keys = [("agent", key) for key in _AGENTS] + [("sink", key) for key in (*_SINKS, *_BACKLOG)]
    for kind, key in keys:
        if key != _OF_PROCESS:
            found[f"ccagent_{key}"] = _metric(key, kind, f"all {kind}s", is_default=key in _DEFAULT)
    for kind, key in keys:
        found[f"ccagent_{kind}_{key}"] = _metric(key, kind, f"by {kind}", is_default=False)
    return found


def _metric(key: str, kind: str, whose: str, *, is_default: bool) -> Metric:
    return Metric(
        unit=_UNITS.get(key, "1/s"),
        type="node",
        description=f"{_MEANINGS[key]}, {whose}",
        source=f"the daemon's counters, {kind}s: {_FIELDS.get(key, key.replace('_', '-'))}",
        scale=_SCALES.get(key, 1.0),
        is_default=is_default,
    )


class OwnCountersReader(Reader[ReaderSettings]):
    """CPU time and memory of this process; in the daemon also counters of agents and sinks.

    Values by agent and by sink have separate metrics. Otherwise the store would take them for
    values of the node.
    """

    name = "ccagent"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = _metrics()

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._agents = Sums(len(_AGENTS))
        self._sinks = Sums(len(_SINKS))

    def list_pending(self, node: Node) -> dict[str, ScopeType]:
        """Return the sums over agents and sinks; only the daemon has them."""
        if not node.is_live:
            return {}
        parts = ("ccagent_agent_", "ccagent_sink_")
        return {name: "node" for name in self.metrics if not name.startswith(parts)}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters. Raise NotHereError on a recorded machine."""
        if node.own_counters is None and not node.is_live:
            raise NotHereError("a recorded machine has no ccagent")
        found: list[Gauge | Count] = [Count("ccagent_cpu", time.process_time_ns() // 1000)]
        if memory := read_resident():
            found.append(Gauge("ccagent_mem_used", memory))
        if node.own_counters is None:
            own = ("ccagent_cpu", "ccagent_mem_used")
            reason = "only the daemon counts this"
            self.absent = {name: reason for name in self.metrics if name not in own}
            return found
        counters = node.own_counters()
        agents = {
            name: (each.samples, each.errors, each.skipped, int(each.cpu_seconds * _MICRO))
            for name, each in counters.agents.items()
        }
        sinks = {
            name: tuple(getattr(each, key) for key in _SINKS)
            for name, each in counters.sinks.items()
        }
        found += _counts("agent", _AGENTS, agents, self._agents)
        found += _counts("sink", _SINKS, sinks, self._sinks)
        for key in _BACKLOG:
            backlog = {name: getattr(each, key) for name, each in counters.sinks.items()}
            found += [
                Gauge(f"ccagent_sink_{key}", number, scope)
                for name, number in backlog.items()
                if (scope := _make_scope("sink", name))
            ]
            found.append(Gauge(f"ccagent_{key}", sum(backlog.values())))
        return found


def _counts(
    kind: Literal["agent", "sink"],
    keys: Sequence[str],
    counters: Mapping[str, tuple[int, ...]],
    sums: Sums,
) -> list[Count]:
    """Yield the counters by name, and their sums. Sums do not fall at a reset."""
    sums.add(counters)
    found: list[Count] = []
    for name, numbers in counters.items():
        scope = _make_scope(kind, name)
        if scope is not None:
            found += [
                Count(f"ccagent_{kind}_{key}", number, scope)
                for key, number in zip(keys, numbers, strict=True)
            ]
    found += [
        Count(f"ccagent_{key}", number)
        for key, number in zip(keys, sums.total, strict=True)
        if key != _OF_PROCESS
    ]
    return found


def _make_scope(kind: str, name: str) -> Scope | None:
    """Return the scope of an agent or a sink; None if the name is no valid tag value."""
    return Scope("node", "", kind, name) if name and is_sendable(name) else None
