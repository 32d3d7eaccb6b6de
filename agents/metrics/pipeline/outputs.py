"""How each metric is sent: from the preset, and from what the configuration says of it."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.pipeline.presets import factor, form
from ccagent.agents.metrics.readers.base import NODE, Metric, Place
from ccagent.config.settings import nearest
from ccagent.errors import ConfigurationError

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
    """Give how those metrics are sent that are. Raises ConfigurationError for unknown names.

    What commands and files tell is not known before they do.
    """
    is_open = bool(settings.commands or settings.files)
    for where, names in (
        ("include", settings.include),
        ("exclude", settings.exclude),
        ("metrics", settings.metrics),
    ):
        for name in names:
            if name not in metrics and not is_open:
                known = nearest(name, [*metrics])
                raise ConfigurationError(
                    f"agents.metrics.{where}: {name!r} is no metric of these readers{known}"
                )
    forms = ((name, sent_form(name, metric, settings)) for name, metric in metrics.items())
    return {name: form for name, form in forms if form is not None}


def sent_form(
    name: str, metric: Metric, settings: MetricsSettings, *, is_custom: bool = False
) -> Sent | None:
    """Give how a metric is sent, None if it isn't. Raises ConfigurationError for its unit.

    is_custom: told by a command or a file, without a unit; that of the configuration is a name.
    """
    own = settings.metrics.get(name)
    wanted = metric.is_default or name in settings.include or own is not None
    if not wanted or name in settings.exclude or (own is not None and own.drop):
        return None
    preset = form(settings.preset, name, metric.unit)
    unit, scale = preset.unit, preset.factor
    if own is None:
        return Sent(preset.name, unit, scale, None, {})
    if own.unit:
        try:
            unit, scale = own.unit, 1.0 if is_custom else factor(metric.unit, own.unit)
        except ValueError as error:
            raise ConfigurationError(f"agents.metrics.metrics.{name}: unit: {error}") from None
    combined = _COMBINED[own.aggregation or metric.aggregation] if own.of_node else None
    return Sent(own.name or preset.name, unit, scale * own.scale, combined, own.tags)


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
