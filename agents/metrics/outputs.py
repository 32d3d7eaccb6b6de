"""From readings to values to send: pace, rates, aggregation, downsampling, jumps of the clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.metrics.presets import apply_preset, find_factor
from ccagent.agents.metrics.readers.base import NODE, Count, Metric, Reader, Scope
from ccagent.errors import CcagentError, ConfigurationError, NotHereError, nearest
from ccagent.log import logger
from ccagent.machine.counters import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.agents.metrics.settings import MetricsSettings
    from ccagent.machine.node import Node


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


_MOST = 200_000


class Downsampler:
    """Collects values and yields their means at the end of each step of the store.

    seconds: length of a step; 0 passes every value through.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slot: int | None = None
        self._values: dict[tuple[str, Scope], tuple[float, int]] = {}

    def add(self, now: float, values: list[Value]) -> Iterator[tuple[float, list[Value]]]:
        """Add the values of `now` (seconds since 1970).

        Yield the end and the means of a finished step.
        """
        if not self._seconds:
            yield now, values
            return
        slot = int(now // self._seconds)
        if self._slot is not None and slot != self._slot and self._values:
            means = [
                (metric, total / number, scope)
                for (metric, scope), (total, number) in self._values.items()
            ]
            yield (self._slot + 1) * self._seconds, means
            self._values = {}
        self._slot = slot
        for metric, value, scope in values:
            key = (metric, scope)
            total, number = self._values.get(key, (0.0, 0))
            if number or len(self._values) < _MOST:
                self._values[key] = (total + value, number + 1)


_TOLERANCE = 30.0
_AGREEING = 3


class ClockGuard:
    """Compares the clock with a monotonic clock.

    A store that received a future time rejects later correct times. Therefore nothing is sent after
    a jump until the new time is stable.
    """

    def __init__(self) -> None:
        self._difference: float | None = None
        self._candidate = 0.0
        self._agreeing = 0

    def accepts(self, time: float, monotonic: float) -> bool:
        """Return whether `time` (seconds since 1970) may be sent."""
        difference = time - monotonic
        if self._difference is None or abs(difference - self._difference) <= _TOLERANCE:
            # Accept slow corrections of the clock.
            self._difference = difference
            self._agreeing = 0
            return True
        if self._agreeing and abs(difference - self._candidate) <= _TOLERANCE:
            self._agreeing += 1
        else:
            self._agreeing = 1
        self._candidate = difference
        if self._agreeing >= _AGREEING:
            self._difference = difference
            self._agreeing = 0
            return True
        return False


class PacedReader:
    """Reads with every sample, or at the interval `every` of the reader. user: named in the log."""

    def __init__(self, reader: Reader[Any], user: str = "agent metrics") -> None:
        self.reader = reader
        self._user = user
        self._rates: Rates[Scope] = Rates()
        self._every: float = 0.0 if reader.has_own_pace else reader.settings.every.seconds
        self._slot: int | None = None

    def is_due(self, now: float) -> bool:
        """Return whether a sample at `now` (seconds since 1970) is the first of its time slot."""
        if not self._every:
            return True
        slot = int(now // self._every)
        is_first, self._slot = slot != self._slot, slot
        return is_first

    def values(self, node: Node, metrics: dict[str, Metric]) -> list[Value]:
        """Return the values of a reading. Log errors, rate-limited; failed metrics are omitted."""
        values: list[Value] = []
        counts: list[Count] = []
        name = f"{self._user}: {self.reader.name}"
        is_known = True
        wanted = self.reader.wanted
        try:
            for each in self.reader.read(node):
                # Skip the rates of unused metrics: NFS alone counts about 90 operations.
                if wanted is not None and each.metric not in wanted:
                    continue
                if isinstance(each, Count):
                    counts.append(each)
                else:
                    values.append(each)
        except NotHereError as error:
            logger.debug("%s: %s", name, error)
        except CcagentError as error:
            logger.warning("%s: %s", name, error)
            is_known = False
        except Exception:  # noqa: BLE001 - a failing reader must not stop others
            logger.exception("%s: unforeseen error", name)
            is_known = False
        for problem in self.reader.errors:
            logger.warning("%s: %s", name, problem)
        # A reading without counters also sets the start of the next interval.
        if counts or is_known:
            values += self._rates.of(counts, metrics, node.clock.monotonic())
        return values
