"""Collectors that read a machine of a test, and what they expose."""

from __future__ import annotations

from typing import Any

from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import SampleEncoder, join_openmetrics, join_text
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.node import Node
from tests.support.exposition import values


def make(kind: type[Collector], **settings: Any) -> Collector:
    """Make a collector with settings."""
    chosen = ExporterSettings(**settings)
    return kind(chosen, NodeSources(chosen))


def collected(collector: Collector, node: Node) -> dict[str, float]:
    """Return the values of a collector by series, after both official parsers took them."""
    blocks = SampleEncoder().encode(collector.collect(node))
    found = values(join_text(blocks).decode())
    openmetrics = values(join_openmetrics(blocks).decode(), "openmetrics")
    assert openmetrics == found
    return found
