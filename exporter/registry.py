"""The configured collectors. The modules of a set of names are imported when the set is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ccagent.exporter.collector_names import COLLECTORS, NOT_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccagent.exporter.collector import Collector
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources


def make_collectors(settings: ExporterSettings, sources: NodeSources) -> dict[str, list[Collector]]:
    """Return the configured collectors by set of names."""
    found: dict[str, list[Collector]] = {}
    for name_set in dict.fromkeys(settings.names):
        chosen = [
            name
            for name in COLLECTORS[name_set]
            if _is_chosen(name, settings.collectors) and name not in settings.exclude
        ]
        places = COLLECTORS[name_set]
        found[name_set] = [_make(name, places[name], settings, sources) for name in chosen]
    return found


def _is_chosen(name: str, collectors: Collection[str]) -> bool:
    """Return whether a collector is listed; without a list whether it is a default."""
    return name in collectors if collectors else name not in NOT_DEFAULT


def _make(name: str, place: str, settings: ExporterSettings, sources: NodeSources) -> Collector:
    """Make a collector. All readers share one class; `name` selects the reader."""
    module, _, kind = place.partition(":")
    made: Collector = getattr(import_module(module), kind)(settings, sources)
    made.name = name
    return made
