"""The readers of the agent `metrics` as collectors, under ccagent's names and in base units.

Each reader is a separate collector: it has a duration, and can be excluded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccagent.agents.metrics.readers.base import NODE, Count
from ccagent.agents.metrics.readers.registry import READERS
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, Scope
    from ccagent.exporter.family import Kind, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_GAUGES = {
    "": ("", 1.0), "%": ("_ratio", 0.01), "B": ("_bytes", 1.0), "s": ("_seconds", 1.0),
    "W": ("_watts", 1.0), "V": ("_volts", 1.0), "A": ("_amperes", 1.0), "Hz": ("_hertz", 1.0),
    "degC": ("_celsius", 1.0), "rpm": ("_rpm", 1.0), "B/s": ("_bytes_per_second", 1.0),
}  # fmt: skip
"""Suffix and factor of a gauge, by the unit of the metric."""
_COUNTERS = {
    "%": ("_seconds_total", 0.01), "B/s": ("_bytes_total", 1.0), "1/s": ("_total", 1.0),
    "W": ("_joules_total", 1.0), "": ("_seconds_total", 1.0), "Flops/s": ("_flops_total", 1.0),
}  # fmt: skip
"""Suffix and factor of a counter, by the unit of its rate. A share of time becomes seconds."""
_LABELS = {"network": "device", "disk": "device", "memoryDomain": "memory_domain"}
_COMPUTED = re.compile(r".*_avg10|net_bw")
"""Metrics that a query of Prometheus computes from others; not exposed."""
_RENAMED = {"proc_total": "threads", "proc_run": "threads_running"}
"""Metrics with another name here: `_total` marks counters in Prometheus."""
_OF_ALL = re.compile(r", all [a-z ]+$")
_KNOWN_LABEL = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


class ReaderCollector(Collector):
    """One reader. A metric that has a value of the node is exposed without its other scopes."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._reader: Reader[Any] | None = None
        self._families: dict[tuple[str, Labels], Family | None] = {}

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the counters and gauges of the reader. Raise the reader's errors."""
        reader = self._reader
        if reader is None:
            reader = self._reader = READERS[self.name]()
        reader.begin(node)
        rows: dict[str, dict[Labels, list[tuple[Scope, Gauge | Count]]]] = {}
        for each in reader.read_raw(node):
            labels = name_labels(each.scope)
            rows.setdefault(each.metric, {}).setdefault(labels, []).append((each.scope, each))
        for problem in reader.errors:
            self.warn(problem)
        for metric, by_labels in rows.items():
            labels = () if () in by_labels else next(iter(by_labels))
            values = by_labels[labels]
            known = reader.metrics[metric]
            key = (metric, labels)
            if key not in self._families:
                is_counter = isinstance(values[0][1], Count)
                self._families[key] = make_family(metric, known, labels, is_counter=is_counter)
            family = self._families[key]
            if family is None:
                continue
            factor = factor_of(known, family.kind)
            yield (
                family,
                [(label_values(scope), scale_value(each.value, factor)) for scope, each in values],
            )

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()


def name_labels(scope: Scope) -> Labels:
    """Return the label names of a scope; () for the node."""
    if scope == NODE:
        return ()
    names = [_LABELS.get(scope.type, scope.type)] if scope.type != "node" else []
    if scope.stype:
        names.append(_LABELS.get(scope.stype, scope.stype))
    return tuple(name if _KNOWN_LABEL.fullmatch(name) else "part" for name in names)


def label_values(scope: Scope) -> Labels:
    """Return the label values of a scope, in the order of `name_labels`."""
    values = [scope.type_id] if scope.type != "node" else []
    return tuple([*values, scope.stype_id] if scope.stype else values)


def make_family(name: str, metric: Metric, labels: Labels, *, is_counter: bool) -> Family | None:
    """Return the family of a metric; None if the metric is not exposed."""
    table = _COUNTERS if is_counter else _GAUGES
    if metric.unit not in table or _COMPUTED.fullmatch(name):
        return None
    suffix, _ = table[metric.unit]
    stem = _RENAMED.get(name, name)
    if suffix.startswith("_bytes"):
        stem = stem.replace("_bytes", "")
    kind: Kind = "counter" if is_counter else "gauge"
    about = describe_family(metric.description, labels, is_counter=is_counter)
    text = f"{about[:1].upper()}{about[1:]}. {metric.source}."
    return Family(f"ccagent_{stem}{suffix}", kind, text, labels)


def describe_family(description: str, labels: Labels, *, is_counter: bool) -> str:
    """Return a metric's description without the parts that only hold for rates or sums."""
    if is_counter:
        description = description.partition(";")[0].removeprefix("share of ")
    if labels:
        description = _OF_ALL.sub("", description).replace("the busiest disk", "the disk")
    return description


def scale_value(value: float, factor: float) -> float:
    """Return value * factor. A factor 1/n divides by n: 57 * 0.01 would not be 0.57."""
    if factor >= 1:
        return value if factor == 1 else value * factor
    return value / round(1 / factor)


def factor_of(metric: Metric, kind: Kind) -> float:
    """Return the factor from the reader's number to the base unit."""
    if kind == "gauge":
        return _GAUGES[metric.unit][1]
    return metric.scale * _COUNTERS[metric.unit][1]
