"""Checkpoints: both formats there and back, hostile names, damaged files; the reference's log.

Which values each holds in its time, nodes that fail, clocks that jump.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccagent.errors import NotPermittedError, UnparsableError
from ccagent.stores.metrics.checkpoint_levels import (
    CheckpointLevel,
    collect_level,
    decode_binary,
    decode_json,
    encode_binary,
    encode_json,
    make_series,
)
from ccagent.stores.metrics.checkpoints import (
    Checkpointer,
    CheckpointFormat,
    find_nodes,
    read_checkpoints,
    remove_checkpoints,
    write_slices,
)
from ccagent.stores.metrics.line_keys import file_name, original_name
from ccagent.stores.metrics.store import MetricStore
from tests.unit.stores.metrics.support import NOW, data, new_store, write_checkpoint
from tests.unit.stores.metrics.test_ingest import stored

BEGIN = NOW - 3600


def filled(host: str = "n1") -> MetricStore:
    store = new_store()
    for step in range(30):
        store.write(("fox", host), "load", BEGIN + 60 * step, step + 0.5)
        if step % 3:
            store.write(("fox", host, "core0"), "power", BEGIN + 60 * step, step * 0.25)
    return store


@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_checkpoint_holds_what_was_written(form: CheckpointFormat, tmp_path: Path) -> None:
    store = filled()
    (node,) = store.root.children["fox"].children.values()
    assert write_checkpoint(node, str(tmp_path), form, BEGIN, NOW) == 59
    again = new_store()
    assert read_checkpoints(again, str(tmp_path), 0) == 50
    assert stored(again) == stored(store)
    assert data(again, BEGIN, NOW) == data(store, BEGIN, NOW)


def test_the_form_of_json_is_that_of_the_reference() -> None:
    (node,) = filled().root.children["fox"].children.values()
    found = json.loads(
        b"".join(encode_json(collect_level(node, BEGIN, BEGIN + 180), BEGIN, BEGIN + 180))
    )
    assert found == {
        "metrics": {"load": {"frequency": 60, "start": BEGIN, "data": [0.5, 1.5, 2.5]}},
        "children": {"core0": {
            "metrics": {"power": {"frequency": 60, "start": BEGIN + 60, "data": [0.25, 0.5]}},
            "children": {},
        }},
        "from": BEGIN, "to": BEGIN + 180,
    }  # fmt: skip


def test_the_form_of_bytes_is_that_of_the_reference() -> None:
    store = new_store()
    store.write(("fox", "n1", "core0"), "load", BEGIN, 1.5)
    (node,) = store.root.children["fox"].children.values()
    level = collect_level(node, BEGIN, BEGIN + 60)
    assert b"".join(encode_binary(level, BEGIN, BEGIN + 60)) == (
        struct.pack("<IqqII", 0xCC5B0001, BEGIN, BEGIN + 60, 0, 1)
        + struct.pack("<H", 5) + b"core0"
        + struct.pack("<IH", 1, 4) + b"load" + struct.pack("<qqIf", 60, BEGIN, 1, 1.5)
        + struct.pack("<I", 0)
    )  # fmt: skip


def test_json_keeps_all_digits(tmp_path: Path) -> None:
    store = new_store()
    store.write(("fox", "n1"), "load", BEGIN, 0.0451234567890123)
    write_checkpoint(store.root.children["fox"].children["n1"], str(tmp_path), "json", BEGIN, NOW)
    again = new_store()
    read_checkpoints(again, str(tmp_path), 0)
    assert stored(again) == {("fox", "n1", "load"): [0.0451234567890123]}


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "../../etc", "a\\b", "%2E%2E", "a\0b", "é", "n1"]
)
def test_hostile_names_stay_in_the_directory(name: str, tmp_path: Path) -> None:
    store = filled(name)
    directory = tmp_path / "checkpoints"
    write_checkpoint(store.root.children["fox"].children[name], str(directory), "json", BEGIN, NOW)
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoints"]
    assert len(list((directory / "fox").iterdir())) == 1
    assert [one.node for one in find_nodes(str(directory))] == [name]
    assert original_name(file_name(name)) == name


def test_nobody_elses_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "checkpoints/fox/n1"
    folder.mkdir(parents=True)
    (folder / f"{BEGIN}.json.tmp").symlink_to(tmp_path / "secret")
    (folder / f"{BEGIN + 1}.json").symlink_to(tmp_path / "secret")
    (tmp_path / "checkpoints/linked").symlink_to(tmp_path)
    node = filled().root.children["fox"].children["n1"]
    with pytest.raises(NotPermittedError, match="symbolic link"):
        write_checkpoint(node, str(tmp_path / "checkpoints"), "json", BEGIN, NOW)
    assert read_checkpoints(new_store(), str(tmp_path / "checkpoints"), 0) == 0
    assert (tmp_path / "secret").read_text() == "secret"


def test_only_recent_files_and_the_one_before_are_read(tmp_path: Path) -> None:
    node = filled().root.children["fox"].children["n1"]
    for start in (BEGIN, BEGIN + 600, BEGIN + 1200):
        write_checkpoint(node, str(tmp_path), "binary", start, start + 600)
    again = new_store()
    read_checkpoints(again, str(tmp_path), BEGIN + 1000)
    assert data(again, BEGIN + 600, BEGIN + 1800)[0] == 10.5
    assert remove_checkpoints(str(tmp_path), BEGIN + 1000) == 1
    assert len(list((tmp_path / "fox/n1").iterdir())) == 2


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"metrics": {"load": {}}}', b'{"metrics": {"load": 1}}',
             b'{"metrics":{"load":{"frequency":0,"start":1,"data":[1]}}}',
             b'{"metrics":{"load":{"frequency":60,"start":1e300,"data":[1]}}}',
             b'{"metrics":{"load":{"frequency":60,"start":1,"data":["x"]}}}',
             b'{"children":' * 2000],
)  # fmt: skip
def test_a_damaged_file_is_passed_over(text: bytes, tmp_path: Path) -> None:
    node = filled().root.children["fox"].children["n1"]
    write_checkpoint(node, str(tmp_path), "json", BEGIN, NOW)
    for name in (f"{BEGIN + 1}.json", f"{BEGIN + 2}.bin"):
        (tmp_path / "fox/n1" / name).write_bytes(text)
    assert read_checkpoints(new_store(), str(tmp_path), 0) == 50


def test_a_directory_that_can_not_be_read_costs_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = filled().root.children["fox"].children["n1"]
    write_checkpoint(node, str(tmp_path), "json", BEGIN, NOW)
    (tmp_path / "fox/n0").mkdir()
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("n0"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listdir(path)

    monkeypatch.setattr("os.listdir", refuse)
    assert read_checkpoints(new_store(), str(tmp_path), 0) == 50
    assert "n0: Permission denied" in caplog.text
    assert remove_checkpoints(str(tmp_path), NOW + 1) == 0


@pytest.mark.slow
@settings(max_examples=4 * settings().max_examples)
@given(st.data())
def test_no_damage_makes_reading_fail_otherwise(draw: st.DataObject) -> None:
    node = filled().root.children["fox"].children["n1"]
    for encode, decode in ((encode_json, decode_json), (encode_binary, decode_binary)):
        text = bytearray(b"".join(encode(collect_level(node, BEGIN, NOW), BEGIN, NOW)))
        for _ in range(draw.draw(st.integers(1, 4))):
            text[draw.draw(st.integers(0, len(text) - 1))] = draw.draw(st.integers(0, 255))
        with suppress(UnparsableError):
            decode(bytes(text[: draw.draw(st.integers(0, len(text)))]))


def reference_record(metric: str, time: int, value: float, *levels: str) -> bytes:
    payload = struct.pack("<qH", time, len(metric)) + metric.encode() + bytes([len(levels)])
    payload += b"".join(bytes([len(level)]) + level.encode() for level in levels)
    payload += struct.pack("<f", value)
    checksum = struct.pack("<I", zlib.crc32(payload))
    return struct.pack("<II", 0xCC1DA7A1, len(payload)) + payload + checksum


def test_the_log_of_the_reference_is_read_up_to_the_first_bad_record(tmp_path: Path) -> None:
    records = [reference_record("load", BEGIN + 60 * n, n) for n in range(3)]
    records.append(reference_record("power", BEGIN, 7.0, "core0"))
    records.append(reference_record("other", BEGIN, 7.0))
    text = struct.pack("<I", 0xCC1DA701) + b"".join(records)
    (tmp_path / "fox/n1").mkdir(parents=True)
    (tmp_path / "fox/n1/current.wal").write_bytes(text + b"half" + records[0])
    store = new_store()
    assert read_checkpoints(store, str(tmp_path), 0) == 4
    assert stored(store) == {
        ("fox", "n1", "load"): [0.0, 1.0, 2.0], ("fox", "n1", "core0", "power"): [7.0],
    }  # fmt: skip


def test_a_wrong_clock_does_not_cost_the_other_values_of_a_log(tmp_path: Path) -> None:
    times = [1, BEGIN, 2 * BEGIN, BEGIN + 60]
    records = [reference_record("load", time, n) for n, time in enumerate(times)]
    (tmp_path / "fox/n1").mkdir(parents=True)
    (tmp_path / "fox/n1/current.wal").write_bytes(struct.pack("<I", 0xCC1DA701) + b"".join(records))
    store = new_store()
    assert read_checkpoints(store, str(tmp_path), 0) == 2
    assert stored(store) == {("fox", "n1", "load"): [1.0, 3.0]}


def test_only_some_metrics_are_collected() -> None:
    node = filled().root.children["fox"].children["n1"]
    found = collect_level(node, BEGIN, NOW, ["load"])
    assert (list(found.series), found.children) == (["load"], {})
    found = collect_level(node, BEGIN, NOW, ["power"])
    assert (list(found.series), list(found.children)) == ([], ["core0"])


def test_a_checkpointer_writes_what_is_new(tmp_path: Path) -> None:
    store = filled()

    def make() -> Checkpointer:
        return Checkpointer(
            store, str(tmp_path / "files"), "json", retention=86400, state=str(tmp_path / "state")
        )

    assert make().write_at_once() == 59
    store.write(("fox", "n1"), "load", NOW + 60, 1.0)
    store.now = lambda: NOW + 120.0
    assert make().write_at_once() == 1
    assert len(list((tmp_path / "files/fox/n1").iterdir())) == 2


def test_infinite_values_are_missing() -> None:
    node = filled().root.children["fox"].children["n1"]
    text = bytearray(
        b"".join(encode_binary(collect_level(node, BEGIN, BEGIN + 60), BEGIN, BEGIN + 60))
    )
    place = text.index(struct.pack("<f", 0.5))
    text[place : place + 4] = struct.pack("<f", math.inf)
    assert np.isnan(decode_binary(bytes(text)).series["load"].values).all()


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

    monkeypatch.setattr("ccagent.stores.metrics.checkpoints.write_slices", fail)
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
