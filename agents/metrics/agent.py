"""The agent `metrics`: what readers tell of the node, as points with one time stamp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.metrics.custom.reader import Custom
from ccagent.agents.metrics.pipeline.downsampling import Steps
from ccagent.agents.metrics.pipeline.outputs import combined, sent_form, sent_metrics
from ccagent.agents.metrics.pipeline.paced import PacedReader
from ccagent.agents.metrics.pipeline.wrong_clock import ClockGuard
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.log import logger
from ccagent.records.line_protocol.encoding import Tags
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.metrics.readers.base import Gauge, Metric, Place
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format

_FIRST_INTERVAL = 1.0


class MetricsAgent(Agent[MetricsSettings]):
    """Metrics of this node: CPU, memory, network, storage, power, hardware counters, jobs."""

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
        self.sent = sent_metrics(self.metrics, settings)
        used = frozenset({*self.sent, *self.custom.operands})
        for reader in self.readers:
            reader.wanted = used
        self._paced = [PacedReader(reader) for reader in self.readers]
        self._steps = Steps(settings.resolution.seconds)
        self._clock = ClockGuard()
        self._tags: dict[tuple[Place, str], Tags] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of readers whose metrics are sent."""
        for reader in self.readers:
            sent = [name for name in reader.metrics if name in self.sent]
            for check in reader.checks(node) if sent else ():
                yield check._replace(impact=", ".join(sent), is_vital=len(self.readers) == 1)

    def prepare(self, node: Node) -> float:
        """Read counters once, so that the first sample has rates."""
        self.custom.begin(node)
        for reader in self.readers:
            reader.is_patient = self.is_only_sample
            reader.begin(node)
        for paced in self._paced:
            paced.values(node, self.metrics)
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Point]:
        """Read once and give the points; all of a tick have its time."""
        now = node.clock.time()
        due = [reader for reader in self._paced if reader.is_due(now)]
        self.custom.begin(node)
        for paced in due:
            paced.reader.begin(node)
        values = [value for paced in due for value in paced.values(node, self.metrics)]
        values += self.told(node, waits=self.is_only_sample)
        values += self.custom.reckoned(values)
        self.is_blind = not values
        if self.is_blind:
            logger.warning("agent metrics: none of the readers could read anything")
        if not self._clock.accepts(now, node.clock.monotonic()):
            logger.warning("agent metrics: the clock jumped; nothing is sent until it is steady")
            return
        # An only sample is told as it is: the step that it is of will not be seen to end.
        steps = Steps(0.0) if self.is_only_sample else self._steps
        for time, step in steps.add(now, combined(values, self.sent)):
            for metric, value, place in step:
                sent = self.sent[metric]
                number = value * sent.factor
                if math.isfinite(number):
                    yield Point(sent.name, self._tags_of(node, metric, place), number, time)

    def told(self, node: Node, *, waits: bool) -> list[Gauge]:
        """Give what commands and files tell; a metric that is new is sent as the settings say."""
        gauges = self.custom.told(node, waits=waits)
        for name, metric in self.custom.metrics.items():
            if name not in self.metrics:
                form = sent_form(name, metric, self.settings, is_custom=True)
                if form is not None:
                    self.sent[name] = form
            self.metrics[name] = metric
        return gauges

    def close(self) -> None:
        """Close the readers, and end commands."""
        self.custom.close()
        for reader in self.readers:
            reader.close()

    def _tags_of(self, node: Node, metric: str, place: Place) -> Tags:
        """Give the tags of a place: those of a node have no type-id (the store hides it else)."""
        more = self.sent[metric].tags
        key = (place, metric if more else "")
        tags = self._tags.get(key)
        if tags is None:
            if len(self._tags) > _MOST_PLACES:
                self._tags.clear()
            tags = Tags({"cluster": node.cluster, "hostname": node.hostname, "type": place.type})
            if place.type_id and place.type != "node":
                tags["type-id"] = place.type_id
            if place.stype:
                tags |= {"stype": place.stype, "stype-id": place.stype_id}
            tags |= more
            self._tags[key] = tags
        return tags


_MOST_PLACES = 100_000
