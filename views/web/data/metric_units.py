"""Units and factors of metrics in a store, from the unit preset of the agents."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ccagent.agents.metrics.presets import Preset


class ShownMetric(NamedTuple):
    """Base unit of a metric. factor: from the store's values to the base unit."""

    unit: str
    factor: float


UNKNOWN = ShownMetric("", 1.0)


@cache
def shown_metrics(preset: Preset) -> dict[str, ShownMetric]:
    """Return unit and factor of ccagent's metrics by their names in a store."""
    from ccagent.agents.metrics.presets import apply_preset
    from ccagent.agents.metrics.settings import READERS

    found: dict[str, ShownMetric] = {}
    for reader in READERS.values():
        for name, metric in reader.metrics.items():
            try:
                output = apply_preset(preset, name, metric.unit)
            except ValueError:
                continue
            # Pages show base units with suitable prefixes.
            unit = metric.unit if output.factor else output.unit
            factor = 1.0 / output.factor if output.factor else 1.0
            found[output.name] = ShownMetric(unit, factor)
    return found
