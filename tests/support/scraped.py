"""Collectors that read a machine of a test, and what they expose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ccagent.exporter.collector import Collector, FunctionCollector
from ccagent.exporter.exposition import FamilyRows, SampleEncoder, join_openmetrics, join_text
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.node import Node
from tests.support.exposition import values


def make(
    kind: type[Collector] | Callable[[Node], Iterable[FamilyRows]], **settings: Any
) -> Collector:
    """Make a collector with settings, of a class or of a function."""
    chosen = ExporterSettings(**settings)
    sources = NodeSources(chosen)
    if isinstance(kind, type):
        made: Collector = kind(chosen, sources)
        return made
    return FunctionCollector(chosen, sources, kind)


def collected(collector: Collector, node: Node) -> dict[str, float]:
    """Return the values of a collector by series, after both official parsers took them."""
    blocks = SampleEncoder().encode(collector.collect(node))
    found = values(join_text(blocks).decode())
    openmetrics = values(join_openmetrics(blocks).decode(), "openmetrics")
    assert openmetrics == found
    return found
