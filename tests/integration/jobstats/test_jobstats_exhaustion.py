"""What a database or a process runs out of: nothing acknowledged is lost, and it goes on later."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.jobstats_store import RunningJobstatsStore, record
from tests.support.postgres import PostgresServer
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRIES = 20


def array(number: int, server: str = "a") -> list[dict[str, object]]:
    return [
        record(number, {"write_bytes": number + 1}, entry_id=f"5:{1000 + n}:c1", server=server)
        for n in range(ENTRIES)
    ]


def count(url: str) -> int:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute("SELECT count(*) FROM ost").fetchone() or (0,)
        return int(found)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A server whose data are on a disk that tests can fill."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    with tempfile.TemporaryDirectory(prefix="pg-disk-") as name:
        os.chmod(name, 0o755)
        command = ["mount", "-t", "tmpfs", "-o", "size=300M,mode=777", "tmpfs", name]
        subprocess.run(command, check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def test_a_full_disk_of_the_database_loses_nothing(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with PostgresServer() as server:
        url = server.make_database()
        with RunningJobstatsStore(tmp_path / "store", "--database", url) as store:
            filler = (small_disk / "filler").open("wb", buffering=0)
            with filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(1 << 16))
            answers = [store.post(array(number)).status for number in range(100)]
            assert set(answers) <= {200, 503}
            assert 503 in answers
            assert store.said().count("No space left") < 5
            (small_disk / "filler").unlink()
            until(lambda: store.post(array(1000)).status == 200)
            assert count(url) == ENTRIES * (answers.count(200) + 1)
            assert "Traceback" not in store.said()


def test_connections_that_end_in_the_middle_lose_nothing(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    url = database
    kept: list[int] = []
    is_over = threading.Event()

    def send(name: str) -> None:
        for number in range(10):
            until(lambda: store.post(array(number, name)).status == 200)  # noqa: B023
            kept.append(number)

    def kill() -> None:
        """Wait longer while nothing is stored: at any fixed pace a slow machine stores nothing."""
        pause, before = 0.02, 0
        with server.connect() as connection:
            query = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'ccagent' AND datname = %s"
            )
            while not is_over.wait(pause):
                connection.execute(query, [conninfo_to_dict(url)["dbname"]])
                pause, before = pause / 2 if len(kept) > before else 2 * pause, len(kept)

    with RunningJobstatsStore(tmp_path / "store", "--database", url) as store:
        killer = threading.Thread(target=kill)
        killer.start()
        senders = [threading.Thread(target=send, args=(one,)) for one in "abc"]
        for one in senders:
            one.start()
        for one in senders:
            one.join(120)
        is_over.set()
        killer.join(60)
        assert (len(kept), count(url)) == (30, 30 * ENTRIES)
        assert "Traceback" not in store.said()


def test_the_reason_why_there_is_no_connection_is_told(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.make_database()
        with RunningJobstatsStore(tmp_path / "store", "--database", url) as store:
            with contextlib.ExitStack() as others:
                administrator = others.enter_context(server.connect())

                def is_told_why() -> bool:
                    administrator.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'ccagent'"
                    )
                    with contextlib.suppress(psycopg.OperationalError):
                        while True:
                            others.enter_context(psycopg.connect(url))
                    answer = store.post(array(1))
                    return answer.status == 503 and b"too many clients" in answer.body

                until(is_told_why)
            until(lambda: store.post(array(1)).status == 200)
            assert count(url) == ENTRIES


def test_a_database_that_only_reads_is_waited_for(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.make_database()
        with RunningJobstatsStore(tmp_path / "store", "--database", url) as store:

            def set_read_only(value: str) -> None:
                with server.connect() as connection:
                    connection.execute("SET default_transaction_read_only = off")
                    connection.execute(
                        f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode()
                    )
                    connection.execute("SELECT pg_reload_conf()")

            set_read_only("on")
            until(lambda: store.post(array(1)).status == 503)
            set_read_only("off")
            until(lambda: store.post(array(2)).status == 200)
            assert "Traceback" not in store.said()


def test_few_descriptors_and_many_clients(database: str, tmp_path: Path) -> None:
    with RunningJobstatsStore(tmp_path / "store", "--database", database, files=64) as store:
        with contextlib.ExitStack() as clients, contextlib.suppress(OSError):
            for _ in range(60):
                clients.enter_context(socket.create_connection(("127.0.0.1", store.port)))
        until(lambda: store.post(array(1)).status == 200)
        # The log had a traceback for each connection that waited, many times a second.
        assert "Traceback" not in store.said()
        assert "24 at a time instead of 1000" in store.said()
