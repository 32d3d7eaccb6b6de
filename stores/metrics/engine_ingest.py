"""Ingest for an engine: lines are decoded as by the store, and passed on as text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ccagent.stores.metrics.exporting import level_tags
from ccagent.stores.metrics.groups import StoredSeries
from ccagent.stores.metrics.ingest import LineIngest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.stores.metrics.engine_commit import EngineCommit
    from ccagent.stores.metrics.groups import SeriesGroup
    from ccagent.stores.metrics.known_keys import RepeatedMessage
    from ccagent.stores.metrics.store import MetricStore

_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_MILLISECONDS = 1000


def labels(path: tuple[str, ...]) -> dict[str, str]:
    """Return the labels of a level."""
    return {name.replace("-", "_"): tag for name, tag in level_tags(path).items()}


def series_text(path: tuple[str, ...], metric: str) -> str:
    """Return a series in Prometheus' text format; empty for names it does not permit."""
    if _PLAIN.fullmatch(metric) is None:
        return ""
    pairs = [f'{name}="{tag.translate(_ESCAPED)}"' for name, tag in labels(path).items()]
    return f"{metric}{{{','.join(pairs)}}} "


class EngineIngest(LineIngest):
    """Passes values on to an engine. Its MetricStore contains the names of series, no values."""

    def __init__(self, names: MetricStore, commit: EngineCommit, **more: Any) -> None:
        super().__init__(names, None, **more)
        self._commit = commit
        self._texts: dict[tuple[int, int], str] = {}
        """Text of a series by group number and column."""

    def _put_runs(self, repeated: RepeatedMessage, time: int, values: list[float]) -> None:
        series = [
            StoredSeries(run.group, run.first + number)
            for run in repeated.runs
            for number in range((run.end - run.begin) // 8)
        ]
        stored = [value for run in repeated.runs for value in values[run.begin // 8 : run.end // 8]]
        self._put(series, stored, [time] * len(stored))

    def _put(
        self, series: Sequence[StoredSeries], values: Sequence[float], times: Sequence[int]
    ) -> None:
        texts = self._texts
        found: list[str] = []
        for (group, column), value, time in zip(series, values, times, strict=True):
            text = texts.get((group.number, column))
            if text is None:
                level, metric = group.columns[column]
                text = texts[group.number, column] = series_text(level.path, metric)
            if text:
                found.append(f"{text}{value!r} {time}000\n")
            else:
                self._put_json(group, column, time, value)
        if found:
            self._commit.add("".join(found).encode())

    def _put_json(self, group: SeriesGroup, column: int, time: int, value: float) -> None:
        level, metric = group.columns[column]
        line = {
            "metric": {"__name__": metric, **labels(level.path)},
            "values": [value],
            "timestamps": [time * _MILLISECONDS],
        }
        self._commit.add_json(json.dumps(line).encode())
