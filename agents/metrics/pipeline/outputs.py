"""Output name, unit and aggregation of each metric, by preset and configuration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.pipeline.presets import apply_preset, find_factor
from ccagent.agents.metrics.readers.base import NODE, Metric, Scope
from ccagent.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.agents.metrics.settings import MetricsSettings


def _mean(values: list[float]) -> float:
    """Return the mean. Importing `statistics` for fmean takes 2 ms."""
    return math.fsum(values) / len(values)


_COMBINED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "mean": _mean, "max": max}

Value = tuple[str, float, Scope]
"""Metric, value, scope."""


class Output(NamedTuple):
    """Output name and unit of a metric.

    factor: from the base unit to `unit`. combine: computes the node value from the values of parts;
    None to send the parts. tags: additional tags.
    """

    name: str
    unit: str
    factor: float
    combine: Callable[[list[float]], float] | None
    tags: dict[str, str]


def make_outputs(metrics: dict[str, Metric], settings: MetricsSettings) -> dict[str, Output]:
    """Return the outputs of the metrics to send.

    Raise ConfigurationError for an unknown name, unless commands or files may add it later.
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
    outputs = ((name, make_output(name, metric, settings)) for name, metric in metrics.items())
    return {name: output for name, output in outputs if output is not None}


def make_output(
    name: str, metric: Metric, settings: MetricsSettings, *, is_custom: bool = False
) -> Output | None:
    """Return the output of a metric; None if it is excluded.

    Raise ConfigurationError for an unknown unit. is_custom: the metric of a command or file has no
    unit; a configured unit is only a label.
    """
    own = settings.metrics.get(name)
    wanted = metric.is_default or name in settings.include or own is not None
    if not wanted or name in settings.exclude or (own is not None and own.drop):
        return None
    preset = apply_preset(settings.preset, name, metric.unit)
    unit, scale = preset.unit, preset.factor
    if own is None:
        return Output(preset.name, unit, scale, None, {})
    if own.unit:
        try:
            unit, scale = own.unit, 1.0 if is_custom else find_factor(metric.unit, own.unit)
        except ValueError as error:
            raise ConfigurationError(f"agents.metrics.metrics.{name}: unit: {error}") from error
    combine = _COMBINED[own.aggregation or metric.aggregation] if own.of_node else None
    return Output(own.name or preset.name, unit, scale * own.scale, combine, own.tags)


def combine_values(values: Iterable[Value], outputs: dict[str, Output]) -> list[Value]:
    """Return the values to send. Combine parts to a node value where configured.

    A node value measured by a reader replaces the combined one.
    """
    kept: list[Value] = []
    parts: dict[str, list[float]] = {}
    of_node: set[str] = set()
    for each in values:
        metric, number, scope = each
        output = outputs.get(metric)
        if output is None:
            continue
        if output.combine is None:
            kept.append(each)
        elif scope == NODE:
            kept.append(each)
            of_node.add(metric)
        elif not scope.stype:
            parts.setdefault(metric, []).append(number)
    for metric, numbers in parts.items():
        combine = outputs[metric].combine
        if combine is not None and metric not in of_node:
            kept.append((metric, combine(numbers), NODE))
    return kept
