"""The write-ahead log: what was flushed comes back, whatever happens to the file."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.queue.record_log import LogFile, LogRecord, read_records
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.log_format import GROUP, MAGIC
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import StoreLogError, WriteAheadLog, list_segments
from tests.unit.stores.metrics.support import NOW, new_ingest, new_store
from tests.unit.stores.metrics.test_ingest import message, stored

if TYPE_CHECKING:
    from ccagent.stores.metrics.store import MetricStore


def replayed(directory: Path, oldest: int = 0) -> tuple[MetricStore, Replay]:
    store = new_store()
    replay = Replay(store)
    replay.read_directory(str(directory), oldest)
    return store, replay


def fill(directory: Path, *bodies: bytes) -> tuple[MetricStore, WriteAheadLog]:
    store, log = new_store(), WriteAheadLog(str(directory))
    ingest = new_ingest(store, log=log)
    for body in bodies:
        ingest.write(body)
        log.flush()
    return store, log


MIXED = message(["7", "8"], NOW + 60) + message(["9", "1"], NOW + 120)
BODIES = [
    message(["1", "2", "3", "4"], NOW - 60),
    message(["5", "6", "7", "8"]),
    message(["0.1", "0.2", "0.3", "1e300"], NOW + 60),
    MIXED,
    message(["1", "2", "3", "4"], NOW, "n2"),
    message(["4", "4", "4", "4", "4"], NOW + 180),
]


def test_what_was_flushed_comes_back(tmp_path: Path) -> None:
    store, _ = fill(tmp_path, *BODIES)
    again, replay = replayed(tmp_path)
    assert stored(again) == stored(store)
    assert replay.damaged == 0


def test_values_count_once_wherever_they_go(tmp_path: Path) -> None:
    fill(tmp_path, *BODIES[:3])
    store = new_store()
    # The columns of the log's group are apart here.
    store.write(("fox", "n1", "core1"), "load", NOW, 0.0)
    replay = Replay(store)
    replay.read_directory(str(tmp_path), 0)
    assert replay.points == 12


def test_reading_twice_changes_nothing(tmp_path: Path) -> None:
    store, log = fill(tmp_path, *BODIES)
    log.close()
    again, replay = replayed(tmp_path)
    replay.read_directory(str(tmp_path), 0)
    assert stored(again) == stored(store)


def test_every_segment_can_be_read_by_itself(tmp_path: Path) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path), largest=1)
    ingest = new_ingest(store, log=log)
    for body in BODIES:
        ingest.write(body)
        log.flush()
    log.close()
    assert len(list_segments(str(tmp_path))) == len(BODIES)
    first, *_ = list_segments(str(tmp_path))
    Path(first[1]).unlink()
    again, _ = replayed(tmp_path)
    assert stored(again)["fox", "n1", "core3", "load"] == [8.0, 1e300, 4.0]


@pytest.mark.parametrize("cut", [1, 7, 8, 13, 100])
def test_half_a_record_at_the_end_costs_that_record(cut: int, tmp_path: Path) -> None:
    fill(tmp_path, *BODIES)
    ((_, path),) = list_segments(str(tmp_path))
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-cut])
    again, replay = replayed(tmp_path)
    assert stored(again)["fox", "n1", "core0", "load"][:3] == [1.0, 5.0, 7.0]
    assert replay.damaged > 0


def test_no_damaged_byte_costs_more_than_records_near_it(tmp_path: Path) -> None:
    fill(tmp_path, *BODIES)
    ((_, path),) = list_segments(str(tmp_path))
    data = Path(path).read_bytes()
    for place in range(0, len(data), 13):
        Path(path).write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        again, replay = replayed(tmp_path)
        found = sum(len(values) for values in stored(again).values())
        assert found >= 9 or place < 200, place
        assert replay.damaged > 0 or place < 12


def test_a_full_disk_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    ingest.write(BODIES[0])
    log.flush()
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 30:
            return write(descriptor, data[:30], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    ingest.write(BODIES[1])
    with pytest.raises(StoreLogError, match="No space left"):
        log.flush()
    monkeypatch.undo()
    ingest.write(BODIES[2])
    log.flush()
    again, replay = replayed(tmp_path)
    assert stored(again)["fox", "n1", "core3", "load"] == [4.0, 1e300]
    assert (replay.damaged, log.failures) == (0, 1)


def test_a_removed_directory_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data" / "log"
    directory.mkdir(parents=True)
    store, log = fill(directory, BODIES[0])
    shutil.rmtree(tmp_path / "data")
    assert not log.check_file()
    new_ingest(store, log=log).write(BODIES[1])
    log.flush()
    assert f"{directory} was removed and is made again" in caplog.text
    for made in (directory, directory.parent, *directory.iterdir()):
        assert made.stat().st_mode & 0o077 == 0
    again, _ = replayed(directory)
    assert len(stored(again)) == len(stored(store))


def shuffled(time: int, *cores: int) -> bytes:
    """Lines of some cores in this order, with ten times the number as value."""
    return b"".join(message([str(10 * n)] * (n + 1), time).split(b"\n")[n] + b"\n" for n in cores)


def test_messages_in_any_order_and_splits_fill_one_group(tmp_path: Path) -> None:
    store, _ = fill(
        tmp_path,
        shuffled(NOW - 60, 2, 0, 5),
        shuffled(NOW, 5, 3, 0),
        shuffled(NOW, 4, 1, 2),  # the same row: values of others stay
        shuffled(NOW + 60, 4, 0, 3),
        shuffled(NOW + 60, 5, 1, 0),
    )
    (group,) = store.groups.values()
    assert group.width == 6
    again, _ = replayed(tmp_path)
    assert len(again.groups) == 1
    found = stored(again)
    assert found == stored(store)
    last = {path[2]: values[-1] for path, values in found.items()}
    assert last == {"core0": 0, "core1": 10, "core2": 20, "core3": 30, "core4": 40, "core5": 50}
    assert found["fox", "n1", "core0", "load"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("late", [30, 60 * 9, -60])
def test_series_of_other_times_have_their_own_group(tmp_path: Path, late: int) -> None:
    """Of another phase, so that values keep their tolerance; later; or before the first ones."""
    store, _ = fill(tmp_path, shuffled(NOW, 0, 1), shuffled(NOW + late, 2, 3))
    assert len(store.groups) == 2
    assert stored(replayed(tmp_path)[0]) == stored(store)


def test_freed_values_do_not_come_back(tmp_path: Path) -> None:
    store, log = fill(tmp_path, *BODIES)
    freed = store.free(["fox", "n1"], NOW + 10**6)
    assert freed
    log.add_freed([["fox", "n1"]], NOW + 10**6)
    new_ingest(store, log=log).write(message(["3", "3", "3", "3"], NOW + 240))
    log.close()
    again, _ = replayed(tmp_path)
    assert stored(again) == stored(store)
    assert stored(again)["fox", "n1", "core0", "load"] == [3.0]


def test_old_values_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, *BODIES)
    again, _ = replayed(tmp_path, NOW + 60)
    assert stored(again)["fox", "n1", "core0", "load"] == [7.0, 9.0, 4.0]


def test_segments_know_their_newest_value(tmp_path: Path) -> None:
    store, log = fill(tmp_path, *BODIES)
    log.rotate()
    assert [segment.newest for segment in log.closed] == [NOW + 180]
    (found,) = Replay(new_store()).read_directory(str(tmp_path), 0)
    assert found.newest == NOW + 180
    del store


def test_a_group_that_got_further_columns_is_made_once(tmp_path: Path) -> None:
    store, _ = fill(tmp_path, *(message(["1", "2", "3", "4"][:n]) for n in (1, 2, 3, 4)))
    (group,) = store.groups.values()
    again, _ = replayed(tmp_path)
    (found,) = again.groups.values()
    assert (group.widened, found.widened, found.metrics) == (3, 0, group.metrics)
    assert stored(again) == stored(store)


def test_a_damaged_description_costs_no_values(tmp_path: Path) -> None:
    store, log = fill(tmp_path, *BODIES)
    log.close()
    ((_, path),) = list_segments(str(tmp_path))
    data = Path(path).read_bytes()
    records = [
        one for one in read_records(memoryview(data), len(MAGIC)) if isinstance(one, LogRecord)
    ]
    descriptions = [bytes(one.payload) for one in records if one.payload[0] == GROUP]
    assert len(descriptions) == 2 * len(set(descriptions))
    for text in set(descriptions):
        place = data.index(text)
        Path(path).write_bytes(data[:place] + b"?" + data[place + 1 :])
        again, replay = replayed(tmp_path)
        assert stored(again) == stored(store)
        assert replay.damaged > 0


def test_second_descriptions_come_a_megabyte_later(tmp_path: Path) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    body = message([str(n) for n in range(2000)])
    for _ in range(100):  # 1.6 MB; the process is killed then
        ingest.write(body)
        log.flush()
    ((_, path),) = list_segments(str(tmp_path))
    data = Path(path).read_bytes()
    records = [
        one for one in read_records(memoryview(data), len(MAGIC)) if isinstance(one, LogRecord)
    ]
    assert records[0].payload[0] == GROUP
    descriptions = sum(1 + group.widened for group in store.groups.values())
    assert sum(one.payload[0] == GROUP for one in records) == 2 * descriptions


def test_a_segment_that_ends_during_a_sync_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = fill(tmp_path, BODIES[0])
    log.rotate()
    new_ingest(store, log=log).write(BODIES[1])
    log.flush()
    synced: list[str] = []

    def sync(file: LogFile) -> None:
        synced.append(os.path.basename(file.path))
        if len(synced) == 1:
            log.rotate()

    monkeypatch.setattr(LogFile, "sync", sync)
    monkeypatch.setattr("ccagent.stores.metrics.log_writer.sync_directory", synced.append)
    log.sync()
    # The last one: a power failure must not lose the name of the new segment.
    assert synced == ["000000000001.log", "000000000002.log", str(tmp_path)]


def test_a_log_that_can_not_be_written_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    problems: list[StoreLogError | None] = []

    async def write(count: int) -> None:
        commit = GroupCommit(log, "write")
        for is_full in (True, False):
            if is_full:
                monkeypatch.setattr(os, "pwrite", refuse)
            else:
                monkeypatch.undo()
            for _ in range(count):
                ingest.write(BODIES[1])
                commit.wait(problems.append)
                await asyncio.sleep(0)
        await commit.close()

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asyncio.run(write(20))
    assert [problem is None for problem in problems] == [False] * 20 + [True] * 20
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"log: {tmp_path}: No space left on device", "log: written again",
    ]  # fmt: skip
