"""Retention and caps: what is too old or too much goes, the oldest first."""

from __future__ import annotations

import asyncio
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.stores.metrics.housekeeping import Housekeeper, find_used_nodes
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import WriteAheadLog, largest_segment
from tests.unit.stores.metrics.support import NOW, new_ingest, new_store
from tests.unit.stores.metrics.test_ingest import message, stored

if TYPE_CHECKING:
    from ccagent.stores.metrics.store import MetricStore

DAY = 86400


def aged_store() -> MetricStore:
    """Values that are 1, 20, 30 and 40 hours old."""
    store = new_store()
    for hours in (40, 30, 20, 1):
        store.write(("fox", f"n{hours}"), "load", NOW - 3600 * hours, 1.0)
    return store


def nodes(store: MetricStore) -> list[str]:
    return [path[1] for path in stored(store)]


def test_what_is_older_than_the_retention_goes(tmp_path: Path) -> None:
    store = aged_store()
    keeper = Housekeeper(store, WriteAheadLog(str(tmp_path)), retention=DAY)
    assert keeper.retain() == 2
    assert (nodes(store), keeper.released) == (["n20", "n1"], 2)
    assert keeper.retain(frozenset({("fox", "n20")})) == 0


@pytest.mark.parametrize(("blocks", "kept"), [(4, 4), (3, 3), (2, 2), (1, 1), (0.5, 1)])
def test_a_memory_cap_takes_the_oldest(tmp_path: Path, blocks: float, kept: int) -> None:
    store = aged_store()
    keeper = Housekeeper(
        store, WriteAheadLog(str(tmp_path)), retention=48 * 3600, memory_cap=int(4096 * blocks)
    )
    keeper.limit_memory()
    assert nodes(store) == ["n40", "n30", "n20", "n1"][4 - kept :]


def test_many_names_take_no_more_than_the_memory_cap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    ingest = new_ingest(store)
    keeper = Housekeeper(store, WriteAheadLog(str(tmp_path)), retention=DAY, memory_cap=2 * 4096)
    for host in range(3):
        ingest.write(f"load,cluster=fox,hostname=h{host} value=1 {NOW}\n".encode())
    for _ in range(2):
        keeper.limit_memory()
    known = f"load,cluster=fox,hostname=h0 value=2 {NOW}\n"
    result = ingest.write(f"{known}load,cluster=fox,hostname=new value=1 {NOW}\n".encode())
    assert (result.stored, result.bad[0].number) == (1, 2)
    assert "values exceed memory-cap" in result.bad[0].reason
    assert caplog.text.count("new series are refused") == 1
    store.now = lambda: float(NOW + DAY)
    store.release_before(NOW + DAY)
    keeper.limit_memory()
    assert ingest.write(f"load,cluster=fox,hostname=new value=1 {NOW}\n".encode()).stored == 1


def filled_log(directory: Path) -> WriteAheadLog:
    """Three segments, with values of 50, 30 and 1 hours ago."""
    directory.mkdir(exist_ok=True)
    log = WriteAheadLog(str(directory))
    ingest = new_ingest(new_store(), log=log)
    for hours in (50, 30, 1):
        ingest.write(message(["1", "2"], NOW - 3600 * hours))
        log.flush()
        log.rotate()
    log.sync()
    return log


def test_segments_without_a_value_within_the_retention_are_old(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    keeper = Housekeeper(new_store(), log, retention=DAY)
    old = keeper.old_segments()
    assert [segment.newest for segment in old] == [NOW - 50 * 3600, NOW - 30 * 3600]
    asyncio.run(keeper.remove_old())
    assert (len(log.closed), len(list(tmp_path.iterdir()))) == (1, 1)


def test_the_log_of_spared_nodes_has_an_end(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    keeper = Housekeeper(new_store(), log, retention=DAY)
    # A start reads two retentions; a job that runs for weeks must not fill the disk.
    assert [one.newest for one in keeper.old_segments(is_spared=True)] == [NOW - 50 * 3600]


def test_a_disk_cap_takes_the_oldest_segments(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    keeper = Housekeeper(new_store(), log, retention=DAY, disk_cap=log.size - 1)
    asyncio.run(keeper.limit_disk())
    assert [segment.newest for segment in log.closed] == [NOW - 30 * 3600, NOW - 3600]


@pytest.mark.slow
def test_the_archive_gets_segments_before_the_disk_cap(tmp_path: Path) -> None:
    log, archive = filled_log(tmp_path / "log"), tmp_path / "archive"
    keeper = Housekeeper(new_store(), log, retention=DAY, disk_cap=log.size, archive=str(archive))
    asyncio.run(keeper.limit_disk())
    assert len(log.closed) == 3  # the cap is not reached
    assert [one.name for one in archive.glob("*/*")] == [f"{NOW - 50 * 3600}.parquet"]
    keeper = Housekeeper(new_store(), log, retention=DAY, disk_cap=1, archive=str(archive))
    asyncio.run(keeper.limit_disk())
    assert (log.closed, keeper.unarchived, len(list(archive.glob("*/*")))) == ([], 0, 3)


@pytest.mark.slow
def test_the_disk_cap_says_what_the_archive_could_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled_log(tmp_path / "log")
    (tmp_path / "file").write_text("no directory")
    keeper = Housekeeper(
        new_store(), log, retention=DAY, disk_cap=log.size - 1, archive=str(tmp_path / "file")
    )
    oldest = log.closed[0]
    asyncio.run(keeper.limit_disk())
    assert (len(log.closed), keeper.unarchived) == (2, 1)
    lost = f"deleting {oldest.path}, values until {oldest.newest}, without archiving"
    assert lost in caplog.text


def test_a_removed_segment_holds_up_no_archive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled_log(tmp_path / "log")
    Path(log.closed[0].path).unlink()
    keeper = Housekeeper(new_store(), log, retention=40 * 3600, archive=str(tmp_path / "archive"))
    asyncio.run(keeper.remove_old())
    assert len(log.closed) == 2
    assert "was removed before it was archived" in caplog.text


def test_a_log_that_is_removed_goes_on_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = WriteAheadLog(str(tmp_path))
    ingest = new_ingest(new_store(), log=log)
    keeper = Housekeeper(new_store(), log, retention=DAY)

    def write() -> None:
        ingest.write(message(["1", "2"], NOW))
        log.flush()
        keeper.check_log()

    write()
    (segment,) = tmp_path.iterdir()
    segment.unlink()
    write()
    assert "was removed by somebody" in caplog.text
    write()
    log.close()
    store = new_store()
    Replay(store).read_directory(str(tmp_path), 0)
    assert len(stored(store)) == 2


def test_links_and_pipes_in_the_log_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled_log(tmp_path / "log")
    (tmp_path / "log/000000000008.log").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "log/000000000009.log")
    found = Replay(new_store()).read_directory(str(tmp_path / "log"), 0)
    assert len(found) == 3
    assert "000000000008.log: a symbolic link is not followed" in caplog.text
    assert "000000000009.log: not a regular file" in caplog.text


@pytest.mark.slow
def test_a_log_with_a_cap_has_segments_to_delete(tmp_path: Path) -> None:
    cap = 1 << 20
    log = WriteAheadLog(str(tmp_path), largest=largest_segment(cap))
    keeper = Housekeeper(new_store(), log, retention=DAY, disk_cap=cap)
    ingest = new_ingest(new_store(), log=log)
    for step in range(20_000):
        ingest.write(message([str(step), "2"], NOW + step % 60))
        if step % 10 == 0:
            log.flush()
        if step % 1000 == 0:
            log.sync()
            asyncio.run(keeper.limit_disk())
            assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= cap
    assert len(log.closed) > 10
    log.close()


def ask_backend(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> tuple[frozenset[tuple[str, str]] | None, str]:
    """Return the used nodes from a backend with one answer, and the requested path or the log."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        found = find_used_nodes(f"http://127.0.0.1:{server.server_port}/cc/", 7)
    return found, caplog.text or asked[0]


def test_nodes_of_running_jobs_are_asked_of_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    found, asked = ask_backend(200, b'{"fox": ["n1", "n2"]}', caplog)
    assert found == frozenset({("fox", "n1"), ("fox", "n2")})
    assert asked == "/cc/api/jobs/used_nodes?ts=7"
    assert find_used_nodes("", 7) == frozenset()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [(302, b"", "302 Found"), (403, b"{}", "403 Forbidden"), (200, b"<html>", "JSON is malformed")],
)
def test_other_answers_of_a_backend_spare_everything(
    status: int, body: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, log = ask_backend(status, body, caplog)
    assert found is None
    assert reason in log


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:1", "connection refused"), ("http://127.0.0.1:x", "port is malformed")],
)
def test_a_backend_that_is_gone_spares_everything(
    url: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_used_nodes(url, 7) is None
    assert reason in caplog.text
