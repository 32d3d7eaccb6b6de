"""How each metric is sent: from the preset, and from what the configuration says of it."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.presets import factor, form
from ccagent.agents.metrics.reading import NODE, Metric, Place
from ccagent.errors import ConfigurationError
from ccagent.settings import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.agents.metrics.settings import MetricsSettings

_COMBINED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "mean": fmean, "max": max}

Value = tuple[str, float, Place]
"""Metric, value, place."""


class Sent(NamedTuple):
    """The form in which a metric is sent.

    factor: from the base unit to `unit`. combined: how parts make one value of the node, None if
    they are sent themselves. tags: more than those of the place.
    """

    name: str
    unit: str
    factor: float
    combined: Callable[[list[float]], float] | None
    tags: dict[str, str]


def sent_metrics(metrics: dict[str, Metric], settings: MetricsSettings) -> dict[str, Sent]:
    """Give how those metrics are sent that are. Raises ConfigurationError for unknown names."""
    for where, names in (
        ("include", settings.include),
        ("exclude", settings.exclude),
        ("metrics", settings.metrics),
    ):
        for name in names:
            if name not in metrics:
                known = nearest(name, [*metrics])
                raise ConfigurationError(
                    f"agents.metrics.{where}: {name!r} is no metric of these readers{known}"
                )
    found: dict[str, Sent] = {}
    for name, metric in metrics.items():
        own = settings.metrics.get(name)
        wanted = metric.is_default or name in settings.include or own is not None
        if not wanted or name in settings.exclude or (own is not None and own.drop):
            continue
        preset = form(settings.preset, name, metric.unit)
        unit, scale = preset.unit, preset.factor
        if own is None:
            found[name] = Sent(preset.name, unit, scale, None, {})
            continue
        if own.unit:
            try:
                unit, scale = own.unit, factor(metric.unit, own.unit)
            except ValueError as error:
                raise ConfigurationError(f"agents.metrics.metrics.{name}: unit: {error}") from None
        combined = _COMBINED[own.aggregation or metric.aggregation] if own.of_node else None
        found[name] = Sent(own.name or preset.name, unit, scale * own.scale, combined, own.tags)
    return found


def combined(values: Iterable[Value], sent: dict[str, Sent]) -> list[Value]:
    """Leave out what isn't sent, and make one value of parts where that is wanted.

    Where a reader tells the node's value itself, that is the one.
    """
    kept: list[Value] = []
    parts: dict[str, list[float]] = {}
    of_node: set[str] = set()
    for each in values:
        metric, number, place = each
        form_of = sent.get(metric)
        if form_of is None:
            continue
        if form_of.combined is None:
            kept.append(each)
        elif place == NODE:
            kept.append(each)
            of_node.add(metric)
        elif not place.stype:
            parts.setdefault(metric, []).append(number)
    for metric, numbers in parts.items():
        form_of = sent[metric]
        if form_of.combined is not None and metric not in of_node:
            kept.append((metric, form_of.combined(numbers), NODE))
    return kept
