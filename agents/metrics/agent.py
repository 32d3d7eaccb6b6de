"""Agent `metrics`: values of the readers as points with one time stamp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.metrics.custom import Custom
from ccagent.agents.metrics.outputs import (
    ClockGuard,
    Downsampler,
    PacedReader,
    combine_values,
    make_output,
    make_outputs,
)
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.log import logger
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, Scope
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format

_FIRST_INTERVAL = 1.0
_MOST_SCOPES = 100_000


class MetricsAgent(Agent[MetricsSettings]):
    """Samples metrics of this node: CPU, memory, network, storage, power, perf counters, jobs."""

    name = "metrics"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = MetricsSettings

    def __init__(self, settings: MetricsSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self.readers = settings.make_readers()
        self.metrics: dict[str, Metric] = {}
        for reader in self.readers:
            self.metrics |= reader.metrics
        self.custom = Custom(settings, self.metrics)
        self.metrics |= self.custom.metrics
        self.outputs = make_outputs(self.metrics, settings)
        used = frozenset({*self.outputs, *self.custom.operands})
        for reader in self.readers:
            reader.wanted = used
        self._paced = [PacedReader(reader) for reader in self.readers]
        self._downsampler = Downsampler(settings.resolution.seconds)
        self._clock = ClockGuard()
        self._tags: dict[tuple[Scope, str], Tags] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of readers whose metrics are sent."""
        for reader in self.readers:
            sent = [name for name in reader.metrics if name in self.outputs]
            for check in reader.checks(node) if sent else ():
                yield check._replace(impact=", ".join(sent), is_vital=len(self.readers) == 1)

    def prepare(self, node: Node) -> float:
        """Read counters once; the first sample then has rates."""
        self.custom.begin(node)
        for reader in self.readers:
            reader.is_patient = self.is_only_sample
            reader.interval = self._interval_of(reader)
            reader.begin(node)
        for paced in self._paced:
            paced.values(node, self.metrics)
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Point]:
        """Read all due readers. Yield their points, all with the time of this tick."""
        now = node.clock.time()
        due = [reader for reader in self._paced if reader.is_due(now)]
        self.custom.begin(node)
        for paced in due:
            paced.reader.begin(node)
        own = [paced for paced in due if paced.reader.name == OwnCountersReader.name]
        others = [paced for paced in due if paced not in own]
        values = [value for paced in others for value in paced.values(node, self.metrics)]
        values += self.collect_custom(node, waits=self.is_only_sample)
        # ccagent's own counters are no evidence of a readable machine.
        self.is_blind = not values and bool(others)
        values += [value for paced in own for value in paced.values(node, self.metrics)]
        values += self.custom.compute(values)
        if self.is_blind:
            logger.warning("agent metrics: no reader could read any value")
        if not self._clock.accepts(now, node.clock.monotonic()):
            logger.warning("agent metrics: the clock jumped; sending is paused until it is steady")
            return
        # A single sample is not downsampled: the process ends before the step does.
        steps = Downsampler(0.0) if self.is_only_sample else self._downsampler
        for time, step in steps.add(now, combine_values(values, self.outputs)):
            for metric, value, scope in step:
                output = self.outputs[metric]
                number = value * output.factor
                if math.isfinite(number):
                    yield Point(output.name, self._tags_of(node, metric, scope), number, time)

    def collect_custom(self, node: Node, *, waits: bool) -> list[Gauge]:
        """Return the values of commands and files. Add an output for each new metric."""
        gauges = self.custom.collect(node, waits=waits)
        for name, metric in self.custom.metrics.items():
            if name not in self.metrics:
                output = make_output(name, metric, self.settings, is_custom=True)
                if output is not None:
                    self.outputs[name] = output
            self.metrics[name] = metric
        return gauges

    def describe(self) -> dict[str, Any]:
        """Return the state of readers for reports on this node."""
        return {name: each for one in self.readers for name, each in one.describe().items()}

    def close(self) -> None:
        """Close the readers and stop running commands."""
        self.custom.close()
        for reader in self.readers:
            reader.close()

    def _interval_of(self, reader: Reader[Any]) -> float:
        """Return the seconds between two readings of a reader; 0 for a single sample."""
        every = self.settings.every
        if self.is_only_sample or every is None:
            return 0.0
        return float(max(every.seconds, reader.settings.every.seconds))

    def _tags_of(self, node: Node, metric: str, scope: Scope) -> Tags:
        """Return the tags of a scope. A node has no type-id: the store would hide the value."""
        more = self.outputs[metric].tags
        key = (scope, metric if more else "")
        tags = self._tags.get(key)
        if tags is None:
            if len(self._tags) > _MOST_SCOPES:
                self._tags.clear()
            tags = Tags({"cluster": node.cluster, "hostname": node.hostname, "type": scope.type})
            if scope.type_id and scope.type != "node":
                tags["type-id"] = scope.type_id
            if scope.stype:
                tags |= {"stype": scope.stype, "stype-id": scope.stype_id}
            tags |= more
            self._tags[key] = tags
        return tags
