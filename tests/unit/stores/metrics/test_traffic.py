"""Messages of cc-metric-collector: every form stays on the fast path, with the right values."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ccagent.records.line_protocol import decode_lines
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric, level_path, seconds
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import WriteAheadLog
from ccagent.stores.metrics.store import MetricStore
from tests.support.collector_traffic import CollectorSettings, collector_messages
from tests.unit.stores.metrics.support import NOW, each_scanner, new_ingest

if TYPE_CHECKING:
    from pathlib import Path

scanner = each_scanner
STEPS = 4
SMALL = CollectorSettings(hwthreads=4, cards=2)
Values = dict[tuple[tuple[str, ...], str, int], float]


def new_store() -> MetricStore:
    return MetricStore(MetricCatalogue({"*": StoredMetric(60, "avg")}), lambda: NOW)


def traffic(settings: CollectorSettings) -> list[bytes]:
    """The messages of some intervals of two nodes, each node's in order."""
    return [
        body
        for step in range(STEPS)
        for node in ("n1", "n2")
        for body in collector_messages(node, NOW - 60 * (STEPS - step), 7, settings)
    ]


def written(bodies: list[bytes]) -> Values:
    """What the lines say, by level, metric and minute; later lines of a level win."""
    found: Values = {}
    for body in bodies:
        for line in decode_lines(body.decode(), "any"):
            if not isinstance(line.value, str) and line.time is not None:
                minute = seconds(line.time) // 60
                found[level_path(line.tags, ""), line.measurement, minute] = float(line.value)
    return found


def stored(store: MetricStore) -> Values:
    found: Values = {}
    for level in store.root.walk():
        for metric, (group, column) in level.series.items():
            for block in group.ordered_blocks():
                for row, value in enumerate(block.values[: block.rows, column].tolist()):
                    if value == value:  # noqa: PLR0124 - NaN is missing
                        minute = group.time(block.first + row) // 60
                        found[level.path, metric, minute] = value
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "s"},
        {"has_units": True},
        {"line_end": "\r\n"},
        {"has_states": True, "has_units": True},
    ],
    ids=str,
)
def test_collectors_lines_are_stored_as_they_say(
    changes: dict[str, object], tmp_path: Path
) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    bodies = traffic(SMALL._replace(**changes))  # type: ignore[arg-type]
    for body in bodies:
        strings = body.count(b'="')
        result = ingest.write(body)
        assert (result.stored, result.bad_count) == (body.count(b"\n") - strings, strings)
    assert stored(store) == written(bodies)
    log.close()
    again = new_store()
    Replay(again).read_directory(str(tmp_path), 0)
    assert stored(again) == written(bodies)


def test_only_the_lines_of_new_series_take_the_general_path() -> None:
    store = new_store()
    ingest = new_ingest(store)
    bodies = traffic(SMALL)
    for body in bodies:
        ingest.write(body)
    before = ingest.counters.known
    late = [body.replace(b"load_one,", b"load_two,") for body in traffic(SMALL)]
    assert sum(ingest.write(body).new_series for body in late) == 2
    assert ingest.counters.known - before >= len(bodies) - 2


def test_lines_in_any_order_and_with_other_tags_are_known(tmp_path: Path) -> None:
    random.seed(3)
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    forms = [
        "m{n},cluster=fox,hostname=h{n} value={v} {t}",
        "m{n},hostname=h{n},cluster=fox value={v}i {t}000000000",
        "m{n},cluster=fox,hostname=h{n},_source=x value={v}u {t}000",
        "m{n},unit=W,hostname=h{n},cluster=fox value={v}e0 {t}000000",
    ]
    bodies: list[bytes] = []
    for step in range(40):
        lines = [
            random.choice(forms).format(n=n, v=100 * step + n, t=NOW - 2400 + 60 * step)
            for n in range(8)
        ]
        random.shuffle(lines)
        bodies.append("\n".join(lines).encode())
        assert ingest.write(bodies[-1]).stored == 8
    assert ingest.counters.known > 10
    assert stored(store) == written(bodies)
    log.close()
    again = new_store()
    Replay(again).read_directory(str(tmp_path), 0)
    assert stored(again) == written(bodies)
