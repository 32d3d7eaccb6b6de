"""Checkpoints in their time: which values each holds, nodes that fail, clocks that jump."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ccagent.stores.metrics.checkpoint_files import (
    read_checkpoints,
    write_slices,
)
from ccagent.stores.metrics.checkpoint_levels import CheckpointLevel, encode_json, make_series
from ccagent.stores.metrics.checkpointing import Checkpointer
from tests.unit.stores.metrics.support import NOW, new_store, write_checkpoint
from tests.unit.stores.metrics.test_ingest import stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccagent.stores.metrics.store import MetricStore

BEGIN = NOW - 3600


@pytest.fixture
def store() -> MetricStore:
    found = new_store()
    for host in ("n1", "n2"):
        for step in range(30):
            found.write(("fox", host), "load", BEGIN + 60 * step, step)
    return found


def checkpointer(store: MetricStore, directory: Path, retention: int = 86400) -> Checkpointer:
    state = str(directory / "state")
    return Checkpointer(store, str(directory / "c"), "json", retention=retention, state=state)


def read(directory: Path) -> dict[tuple[str, ...], list[float]]:
    again = new_store()
    read_checkpoints(again, str(directory / "c"), 0)
    return stored(again)


def test_a_node_that_failed_is_written_by_the_next_one(
    store: MetricStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c/fox").mkdir(parents=True)
    (tmp_path / "c/fox/n2").write_text("in the way")
    assert checkpointer(store, tmp_path).write_at_once() == 30
    assert "checkpoint of fox/n2: Not a directory" in caplog.text
    (tmp_path / "c/fox/n2").unlink()
    store.write(("fox", "n1"), "load", NOW + 60, 9.0)
    store.now = lambda: NOW + 120.0
    # A restart remembers it.
    checkpointer(store, tmp_path).write_at_once()
    assert read(tmp_path) == stored(store)
    assert len(list((tmp_path / "c/fox/n1").iterdir())) == 2
    assert json.loads((tmp_path / "state").read_text())["behind"] == []


def test_an_unforeseen_error_costs_its_node(
    store: MetricStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(node: Any, *more: Any) -> Iterator[int]:
        if node.path[1] == "n1":
            raise MemoryError
        return write_slices(node, *more)

    monkeypatch.setattr("ccagent.stores.metrics.checkpointing.write_slices", fail)
    assert checkpointer(store, tmp_path).write_at_once() == 30
    monkeypatch.undo()
    assert checkpointer(store, tmp_path).write_at_once() == 30


def test_values_wait_five_minutes_for_a_checkpoint_but_not_for_the_last(
    store: MetricStore, tmp_path: Path
) -> None:
    store.write(("fox", "n1"), "load", NOW, 1.0)
    asyncio.run(checkpointer(store, tmp_path).write())
    store.write(("fox", "n1"), "load", NOW - 120, 2.0)  # late, but not by more
    checkpointer(store, tmp_path).write_at_once()
    assert len(list((tmp_path / "c/fox/n1").iterdir())) == 2
    assert read(tmp_path) == stored(store)


def test_files_of_another_program_are_continued(store: MetricStore, tmp_path: Path) -> None:
    node = store.root.children["fox"].children["n1"]
    write_checkpoint(node, str(tmp_path / "c"), "binary", BEGIN, BEGIN + 600)
    ahead = CheckpointLevel()
    ahead.series["load"] = make_series(60, NOW + 10**6, np.array([1.0]))
    (tmp_path / "c/fox/n2").mkdir()
    (tmp_path / "c/fox/n2/1.json").write_bytes(b"".join(encode_json(ahead, 1, 2)))
    ends: dict[tuple[str, str], int] = {}
    read_checkpoints(new_store(), str(tmp_path / "c"), 0, ends)
    state, directory = str(tmp_path / "state"), str(tmp_path / "c")
    taken = Checkpointer(store, directory, "json", retention=86400, state=state, ends=ends)
    # Ten values of n1 are in the file already; n2 has one that no clock has reached.
    assert taken.write_at_once() == 20 + 30


def test_a_clock_that_was_ahead_does_not_end_checkpoints(
    store: MetricStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text(json.dumps({"until": NOW + 10**6}))
    assert checkpointer(store, tmp_path).write_at_once() == 60
    assert "1000000 s ahead of the clock" in caplog.text
    assert json.loads((tmp_path / "state").read_text())["until"] == NOW + 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"until": "x"}', '{"until": 1e300}'])
def test_a_damaged_state_makes_a_whole_checkpoint(
    text: str, store: MetricStore, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text(text)
    assert checkpointer(store, tmp_path).write_at_once() == 60


@pytest.mark.parametrize("place", ["c/fox", "c/fox/n1"])
def test_no_link_below_the_directory_is_followed(
    place: str, store: MetricStore, tmp_path: Path
) -> None:
    target = tmp_path / "secret"
    target.mkdir()
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).symlink_to(target)
    checkpointer(store, tmp_path).write_at_once()
    assert list(target.iterdir()) == []
