"""The running store: HTTP, tokens, hostile requests, an absent database, and its end."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from ccagent.stores.jobstats.schema import drop_partitions
from tests.support.certificates import Authority
from tests.support.jobstats_store import RunningJobstatsStore, record, zeros
from tests.support.postgres import PostgresServer
from tests.support.running import until
from tests.support.upgrades import PREFACE, ask_for_upgrades, ask_with_curl, statuses

TOKENS = {"a": "a-token-of-the-server-a", "b": "b-token-of-the-server-b"}
READER = "a-token-of-a-reader-xyz"
JOBS = "a-token-of-the-slurm-master"


def count(database: str, table: str = "ost") -> int:
    with psycopg.connect(database) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert found is not None
    return int(found[0])


@pytest.fixture
def guarded(tmp_path: Path, database: str) -> Iterator[RunningJobstatsStore]:
    """A store with tokens."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    lines = [f"sender {name} {token}" for name, token in TOKENS.items()]
    tokens.write_text("\n".join([*lines, f"reader people {READER}", f"jobs slurm {JOBS}", ""]))
    options = ("--database", database, "--token-file", str(tokens))
    with RunningJobstatsStore(tmp_path / "guarded", *options) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("", 400, "not a JSON array"),
        ("{}", 400, "not a JSON array"),
        ("[1]", 400, "Expected `object`, got `int`"),
        ("[[[[" * 5000, 400, "not a JSON array"),
        ('[{"target": {}}]', 400, "got `object`"),
        ("[{}]", 400, "target: missing"),
        (b'[{"target": "\xff"}]', 400, "unable to parse"),
        (json.dumps([record(0, {"write": 2**64})]), 400, "write: not an integer"),
        (json.dumps([record(0, {"write": -1})]), 400, "write: not an integer"),
        (json.dumps([record(0, {"write": True})]), 400, "write: not an integer"),
        (json.dumps([record(0, write=1.0)]), 400, "write: not an integer"),
        (json.dumps([record(0, write=None)]), 400, "write: not an integer"),
        (json.dumps([record(0, write=10**40)]), 400, "write: not an integer"),
        (json.dumps([record(0, target="fs\0")]), 400, "target: has an unprintable"),
        (json.dumps([record(0, entry_id="x" * 2000)]), 400, "entry_id: longer than 1024"),
        (json.dumps([record(0, entry_id="\u00e9" * 600)]), 400, "longer than 1024 bytes"),
        (json.dumps([record(0, server="a\nb")]), 400, "server: has an unprintable"),
        (json.dumps([record(0, timestamp="yesterday")]), 400, "'yesterday' is not a time"),
        (json.dumps([record(0, timestamp="2026-11-22T10:00:00")]), 400, "no offset from UTC"),
        (json.dumps([record(0, timestamp=5)]), 400, "timestamp: missing, or not a string"),
        (json.dumps([record(0, snapshot_time=1e300)]), 400, "snapshot_time: not a number"),
        (json.dumps([record(0, snapshot_time="soon")]), 400, "snapshot_time: not a number"),
        (json.dumps([record(0, reset="often")]), 400, "reset: expected one of"),
        (json.dumps([record(0, time_series_id="'; DROP")]), 400, "time_series_id: not a UUID"),
        (json.dumps([record(0, user_id="root")]), 400, "user_id: not an integer"),
        (json.dumps([record(0, job_id=2**64)]), 400, "job_id: expected an integer"),
        (json.dumps([record(0, malformed=1)]), 400, "malformed: not a boolean"),
        (json.dumps([record(0, **{"a; DROP TABLE ost": 1})]), 400, "not the name of an operation"),
        (json.dumps([record(0, **{f"x{n}": n for n in range(500)})]), 400, "500 counters"),
    ],
)
def test_what_can_never_be_stored_is_refused(
    shared: tuple[RunningJobstatsStore, str], body: str | bytes, status: int, reason: str
) -> None:
    store, database = shared
    answer = store.ask("POST", "/lustre", body)
    said = answer.json()
    texts = [said["error"], *(one["reason"] for one in said.get("records", []))]
    assert answer.status == status, answer
    assert any(reason in text for text in texts), texts
    assert (count(database), count(database, "metadata")) == (0, 0)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, server: PostgresServer, template: str
) -> Iterator[tuple[RunningJobstatsStore, str]]:
    """A store of several tests, which store nothing."""
    database = server.make_database(template)
    directory = tmp_path_factory.mktemp("shared")
    with RunningJobstatsStore(directory, "--database", database) as running:
        yield running, database


def test_sql_in_every_text_is_text(store: RunningJobstatsStore, database: str) -> None:
    evil = "'); DROP TABLE ost; --\\\"$$%s{}"
    fields = dict.fromkeys(("target", "entry_id", "server", "user", "nodename", "job_id"), evil)
    assert store.post([record(0, **fields), record(120, {"write": 1}, **fields)]).status == 200
    assert store.ask("GET", "/top?by=target&sort=write").json()["rows"] == []
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT target, entry_id, job, nodename FROM metadata")
        assert found.fetchall() == [(evil, evil, evil, evil)]
    for path in ("/job/%27%3B%20DROP", "/top?by=x%27", "/top?sort=a%27b", "/top?last=%00"):
        assert store.ask("GET", path).status in {400, 404}
    assert count(database) == 2


def test_bodies_are_bounded(shared: tuple[RunningJobstatsStore, str]) -> None:
    store, database = shared
    bomb = gzip.compress(b"[" + b" " * 100_000_000)
    before = store.resident()
    assert store.ask("POST", "/lustre", bomb, {"Content-Encoding": "gzip"}).status == 413
    assert store.ask("POST", "/lustre", b"x", {"Content-Length": "100000000"}).status == 413
    broken = gzip.compress(b"[]")[:-4]
    assert store.ask("POST", "/lustre", broken, {"Content-Encoding": "gzip"}).status == 400
    assert store.ask("POST", "/lustre", b"", {"Content-Encoding": "br"}).status == 415
    with socket.create_connection(("127.0.0.1", store.port)) as connection:
        head = b"POST /lustre HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        try:
            for _ in range(200):
                connection.sendall(b"80000\r\n" + b" " * 0x80000 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert store.resident() - before < 40_000_000
    assert store.ask("GET", "/status").json()["body_bytes"] == 0
    assert count(database) == 0


def test_tokens_decide_who_sends_and_who_asks(guarded: RunningJobstatsStore, database: str) -> None:
    array = [record(0), record(120, {"write_bytes": 1})]
    assert guarded.post(array).status == 401
    assert guarded.post(array, "a-token-that-nobody-has").status == 401
    other = guarded.post(array, TOKENS["b"])
    assert other.status == 403
    assert "server: 'a' is not 'b', the owner of the token" in other.json()["records"][0]["reason"]
    assert guarded.post(array, READER).status == 403
    assert count(database) == 0
    assert guarded.post(array, TOKENS["a"]).status == 200
    mixed = [record(240, server="b"), record(240, server="a")]
    assert guarded.post(mixed, TOKENS["b"]).status == 200
    assert guarded.post([record(240, server=...)], TOKENS["b"]).status == 200
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT server, count(*) FROM ost GROUP BY 1 ORDER BY 1")
        assert rows.fetchall() == [("a", 2), ("b", 1)]
    for path in ("/top", "/job/5", "/status", "/metrics", "/export"):
        assert guarded.ask("GET", path).status == 401
        assert guarded.ask("GET", path, headers=bearer(TOKENS["a"])).status == 403
        assert guarded.ask("GET", path, headers=bearer(READER)).status in {200, 404}
    assert guarded.ask("HEAD", "/lustre", headers=bearer(TOKENS["a"])).status == 200
    assert guarded.ask("HEAD", "/lustre").status == 401
    assert not any(token in guarded.said() for token in (*TOKENS.values(), READER))


def test_a_changed_token_file_is_read_again(guarded: RunningJobstatsStore, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    fresh = "another-token-of-server-c"
    tokens.write_text("sender c too-short\n")
    time.sleep(1.1)
    assert guarded.post([record(0)], TOKENS["a"]).status == 200
    tokens.write_text(f"sender c {fresh}\n")
    until(lambda: guarded.post([record(0, server="c")], fresh).status == 200)
    assert guarded.post([record(0)], TOKENS["a"]).status == 401


def test_jobs_of_slurm_are_joined(guarded: RunningJobstatsStore) -> None:
    def envelope(account: str, reported: str) -> bytes:
        job = {
            "job_id": 5, "job_state": "RUNNING", "user_name": "ada", "account": account,
            "partition": "gpu", "job_name": "x'; --", "submit_time": "2026-11-22T09:00:00+01:00",
        }  # fmt: skip
        steps = [{**job, "job_step": "batch", "account": "step"}]
        attributes = {"time": reported, "cluster": "fox", "slurm_jobs": [job, *steps]}
        data = {"type": "jobs", "attributes": attributes}
        meta = {"producer": "ccagent", "version": "1", "format": 0}
        return json.dumps({"meta": meta, "data": data}).encode()

    now = time.time()
    moments = [time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now - n)) for n in (120, 1)]
    array = [
        record(0, {"write_bytes": 0}, timestamp=moments[0], snapshot_time=None),
        record(0, {"write_bytes": 7}, timestamp=moments[1]),
    ]
    assert guarded.post(array, TOKENS["a"]).status == 200
    for account, reported in (("new", "2026-11-22T11:00:00Z"), ("old", "2026-11-22T10:00:00Z")):
        answer = guarded.ask("POST", "/job", envelope(account, reported), bearer(JOBS))
        assert (answer.status, answer.json()) == (200, {"jobs": 1})
    for by, key in (("account", "new"), ("project", "new"), ("partition", "gpu")):
        path = f"/top?by={by}&sort=write_bytes"
        rows = guarded.ask("GET", path, headers=bearer(READER)).json()["rows"]
        assert rows == [{"key": key, "totals": {"read_bytes": 0, "write_bytes": 7}}]
    path = "/top?by=node&account=old&sort=write_bytes"
    assert guarded.ask("GET", path, headers=bearer(READER)).json()["rows"] == []
    found = guarded.ask("GET", "/job/5", headers=bearer(READER)).json()
    assert (found["slurm"]["account"], found["totals"][0]["total"]) == ("new", 7)
    assert guarded.ask("POST", "/job", b"{}", bearer(JOBS)).status == 422
    assert guarded.ask("POST", "/job", b"{}", bearer(TOKENS["a"])).status == 403


def test_without_a_database_senders_are_asked_to_wait(
    tmp_path: Path, server: PostgresServer, template: str
) -> None:
    with PostgresServer() as own:
        url = own.make_database()
        own.stop()
        with RunningJobstatsStore(tmp_path / "s", "--database", url, is_ready=False) as store:
            answer = store.post([record(0)])
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            own.start()
            until(lambda: store.post([record(0)]).status == 200, 30)
            own.stop()
            assert store.post([record(120)]).status == 503
            assert store.ask("GET", "/top").status == 503
            own.start()
            until(lambda: store.post([record(120)]).status == 200, 30)
            assert count(url) == 2


def test_a_partition_that_somebody_dropped_is_made_again(
    store: RunningJobstatsStore, database: str
) -> None:
    assert store.post([record(0)]).status == 200
    with psycopg.connect(database, autocommit=True) as connection:
        drop_partitions(connection, datetime.now(UTC) + timedelta(days=30))
    answers = [store.post([record(120)]) for _ in range(2)]
    assert [one.status for one in answers] == [503, 200], answers
    assert count(database) == 1


def test_times_are_read_whatever_the_role_is_set_to(tmp_path: Path, server: PostgresServer) -> None:
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        for setting in (sql.SQL("datestyle = 'SQL, DMY'"), sql.SQL("timezone = 'Asia/Kolkata'")):
            connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(name, setting))
    with RunningJobstatsStore(tmp_path / "s", "--database", url) as store:
        assert store.post([zeros(0), record(120)]).status == 200
        assert len(store.ask("GET", "/top?last=90d").json()["rows"]) == 1


def test_a_database_of_another_encoding_is_refused(tmp_path: Path, server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.autocommit = True
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    done = subprocess.run(
        [sys.executable, "-m", "ccagent", *("store", "jobstats", "migrate", "--database"),
         server.url("latin")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "its encoding is LATIN1: create one with CREATE DATABASE" in done.stderr


def test_an_end_finishes_what_is_in_hand(store: RunningJobstatsStore, database: str) -> None:
    array = json.dumps([record(n, entry_id=f"{n}:1:c1") for n in range(5000)])
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(store.ask("POST", "/lustre", array).status)
    )
    thread.start()
    until(lambda: store.ask("GET", "/status").json()["body_bytes"] > 0)
    assert store.stop() == 0
    thread.join()
    assert answers == [200]
    assert count(database) == 5000


def test_several_stores_share_a_database(tmp_path: Path, database: str) -> None:
    options = ("--database", database)
    with (
        RunningJobstatsStore(tmp_path / "x", *options) as one,
        RunningJobstatsStore(tmp_path / "y", *options) as other,
    ):
        arrays = [
            [zeros(0, entry_id=f"{k}:1:c1"), record(120, {"write_bytes": k}, entry_id=f"{k}:1:c1")]
            for k in range(40)
        ]
        with ThreadPoolExecutor(16) as pool:
            found = pool.map(one.post, arrays), pool.map(other.post, arrays)
            answers = [answer for each in found for answer in each]
    assert {answer.status for answer in answers} == {200}
    assert (count(database), count(database, "metadata")) == (80, 40)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT sum(total) FROM totals").fetchone() == (sum(range(40)),)


def test_it_serves_over_tls(tmp_path: Path, database: str) -> None:
    made = Authority(tmp_path)
    certificate, key = made.certify("store")
    configuration = tmp_path / "store.toml"
    configuration.write_text(
        f'database = "{database}"\n[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    with RunningJobstatsStore(tmp_path / "tls", "--config", str(configuration)) as store:
        done = ask_commands(
            "top", "--url", f"https://127.0.0.1:{store.port}", "--ca-file", made.certificate
        )
        assert (done.returncode, done.stdout) == (0, "job  read_bytes  write_bytes\n"), done.stderr


def ask_commands(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "jobstats", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def top(store: RunningJobstatsStore, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ask_commands("top", "--url", store.url, *arguments)


def test_top_refuses_an_operation_of_no_record(store: RunningJobstatsStore) -> None:
    store.post([record(0, {"write_bytes": 1, "prealloc": 0}), record(60, {"prealloc": 7})])
    done = top(store, "--sort", "opens")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no record has the operation 'opens': did you mean 'open'?" in done.stderr
    done = top(store, "--sort", "prealloc", "--from", "2020-01-01")
    assert (done.returncode, done.stdout.splitlines()[0].split()[1]) == (0, "prealloc")


def test_top_says_why_it_is_empty(store: RunningJobstatsStore) -> None:
    assert top(store).stderr == "the store has no observations\n"
    stored = record(0, {"write_bytes": 1})
    store.post([stored])
    latest = stored["timestamp"][:19]
    assert top(store, "--from", "2020-01-01", "--to", "2020-01-02").stderr == (
        f"nothing matches; the latest observation of all is of {latest} UTC\n"
    )
    accounts = top(store, "--from", "2020-01-01", "--by", "account")
    assert "let the agent `jobs` send them to /job" in accounts.stderr


def test_a_body_that_is_far_too_large_is_answered(store: RunningJobstatsStore) -> None:
    answer = store.ask("POST", "/lustre", bytes(100 * 1024 * 1024))
    assert answer.status == 413
    pieces = (bytes(1024 * 1024) for _ in range(100))
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
    connection.request("POST", "/lustre", pieces, encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().status == 413
    connection.close()


def test_an_upgrade_is_ignored(store: RunningJobstatsStore, database: str) -> None:
    array = json.dumps([record(0)])
    assert ask_with_curl(f"{store.url}/lustre", "--data-binary", array) == 200
    found = ask_for_upgrades(store.port, b"POST /lustre HTTP/1.1", array.encode())
    assert found == [[200, 404]] * 8
    assert statuses(store.port, PREFACE) == [400]
    assert store.ask("GET", "/status").json()["repeated"] == 8
    assert count(database) == 1


def test_a_sender_makes_so_many_series_in_an_hour(tmp_path: Path, database: str) -> None:
    configuration = tmp_path / "store.toml"
    configuration.write_text(f'database = "{database}"\n[limits]\nnew-series = 30\n')
    with RunningJobstatsStore(tmp_path / "s", "--config", str(configuration)) as store:
        answer = store.post([record(0, entry_id=f"{n}:1:c1") for n in range(50)])
        found = answer.json()
        assert answer.status == 429
        assert (found["records"], found["stored"], found["refused_series"]) == (50, 30, 20)
        assert found["error"].startswith("partial write: 20 records refused, 30 stored: the sender")
        assert 0 < int(answer.headers["retry-after"]) <= 3600
        # Known series are stored; another server has its own budget.
        again = store.post([record(60, entry_id=f"{n}:1:c1") for n in range(40)])
        assert (again.status, again.json()["stored"]) == (429, 30)
        assert store.post([record(120, entry_id=f"{n}:1:c1") for n in range(30)]).status == 200
        others = [record(0, entry_id=f"{n}:1:c1", server="b") for n in range(100, 130)]
        assert store.post(others).status == 200
        assert (count(database), count(database, "metadata")) == (120, 60)
        # What is refused as a whole takes nothing from a budget.
        assert store.post([record(0, entry_id="x", server="c", reset="?")]).status == 400
        status = store.ask("GET", "/status").json()
        assert status["refused_series"] == 30
        (sender,) = status["senders"]
        assert (sender["sender"], sender["new_series"]) == ("address 127.0.0.1", 60)
        metrics = store.ask("GET", "/metrics").body.decode()
        assert (
            'ccagent_jobstats_sender_new_series_total{sender="address 127.0.0.1"} 60\n' in metrics
        )


def test_refusals_write_one_line_an_hour(store: RunningJobstatsStore) -> None:
    for number in range(200):
        assert store.post([record(0, entry_id="e" * (2000 + number))]).status == 400
    assert store.said().count("refused an array") == 1


def test_silent_connections_are_closed(tmp_path: Path, database: str) -> None:
    configuration = tmp_path / "store.toml"
    configuration.write_text(f'database = "{database}"\n[limits]\ntime = "1s"\nconnections = 20\n')
    with RunningJobstatsStore(tmp_path / "slow", "--config", str(configuration)) as store:
        silent = [socket.create_connection(("127.0.0.1", store.port)) for _ in range(25)]
        silent[0].sendall(b"POST /lustre HTTP/1.1\r\nHost: ")
        until(lambda: store.ask("GET", "/status").status == 200, 20)
        for one in silent:
            one.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
            one.close()


def test_it_tells_the_service_manager(tmp_path: Path, database: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        store = subprocess.Popen(
            [sys.executable, "-m", "ccagent", "store", "jobstats",
             "--database", database, "--listen", "127.0.0.1:0"],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )  # fmt: skip
        assert manager.recv(1000).startswith(b"READY=1\nSTATUS=port ")
        store.terminate()
        assert manager.recv(1000) == b"STOPPING=1"
        assert store.wait(60) == 0
