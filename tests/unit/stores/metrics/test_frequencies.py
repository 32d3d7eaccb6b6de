"""A metric whose time step has been changed: its stored values keep their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.stores.metrics.checkpoints import read_checkpoints
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import WriteAheadLog
from ccagent.stores.metrics.store import MetricStore
from tests.unit.stores.metrics.support import (
    METRICS,
    NOW,
    data,
    line,
    new_ingest,
    new_store,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = NOW - 600
WITH_10_S = [0.0, *[None] * 5, 1.0, *[None] * 5, 2.0]


def changed(seconds: int) -> MetricStore:
    metrics = METRICS | {"load": StoredMetric(seconds, "avg")}
    return MetricStore(MetricCatalogue(metrics), lambda: NOW)


def filled(log: WriteAheadLog | None = None) -> MetricStore:
    store = new_store()
    ingest = new_ingest(store, log=log)
    for step in range(3):
        when = BEGIN + 60 * step
        ingest.write((line("load", step, when) + line("power", step, when)).encode())
    return store


@pytest.mark.parametrize(
    ("seconds", "expected"), [(10, WITH_10_S), (60, [0.0, 1.0, 2.0]), (120, [0.0, 2.0])]
)
def test_values_of_the_log_are_laid_into_the_new_steps(
    seconds: int, expected: list[float | None], tmp_path: Path
) -> None:
    log = WriteAheadLog(str(tmp_path))
    filled(log)
    log.close()
    store = changed(seconds)
    Replay(store).read_directory(str(tmp_path), 0)
    assert data(store, BEGIN, NOW) == expected
    assert data(store, BEGIN, NOW, "power") == [0.0, 1.0, 2.0]
    said = store.changed_steps.describe()
    assert (f"load (stored each 60 s, now {seconds} s)" in said) == (seconds != 60)
    assert "power" not in said
    new_ingest(store).write(line("load", 7, BEGIN + 180 + seconds).encode())
    assert data(store, BEGIN, NOW)[-1] == 7.0


@pytest.mark.parametrize(("seconds", "expected"), [(10, WITH_10_S), (120, [0.0, 2.0])])
def test_values_of_checkpoints_too(
    seconds: int, expected: list[float | None], tmp_path: Path
) -> None:
    write_checkpoint(filled().root.children["fox"].children["n1"], str(tmp_path), "json", 0, NOW)
    store = changed(seconds)
    read_checkpoints(store, str(tmp_path), 0)
    assert data(store, BEGIN, NOW) == expected
    assert store.changed_steps.describe() != ""


def test_only_some_metrics_are_named() -> None:
    metrics = {f"m{number}": StoredMetric(10, None) for number in range(9)}
    store = MetricStore(MetricCatalogue(metrics), lambda: NOW)
    for metric in metrics:
        store.changed_steps.configured(metric, 60)
    said = store.changed_steps.describe()
    assert "m4 (stored each 60 s, now 10 s), 4 more has changed" in said
