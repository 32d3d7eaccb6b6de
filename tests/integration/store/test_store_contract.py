"""The HTTP interface of the metric store, clause by clause, as clients use it."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.certificates import Authority
from tests.support.metric_store import RunningStore
from tests.support.running import until
from tests.support.upgrades import PREFACE, ask_for_upgrades, ask_with_curl, statuses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIGURATION = """
[metrics.load]
frequency = "60s"
aggregation = "avg"
[metrics.power]
frequency = "60s"
aggregation = "sum"
[metrics.clock]
frequency = "60s"
[limits]
body = "1MB"
time = "2s"
"""

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
LOAD = {"metric": "load", "host": "n1"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    directory = tmp_path_factory.mktemp("store")
    (directory / "store.toml").write_text(CONFIGURATION)
    with RunningStore(directory, "--config", str(directory / "store.toml")) as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    """A store that wants tokens."""
    directory = tmp_path_factory.mktemp("closed")
    public = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()
    (directory / "store.toml").write_text(f'jwt-public-key = "{public}"\n{CONFIGURATION}')
    with RunningStore(directory, "--config", str(directory / "store.toml")) as running:
        yield running


def now() -> int:
    return int(time.time())


def lines(*values: float, host: str, metric: str = "load", begin: int) -> str:
    return "".join(
        f"{metric},cluster=fox,hostname={host},type=node value={value} {begin + 60 * step}\n"
        for step, value in enumerate(values)
    )


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/write", 405), ("PUT", "/api/write", 405), ("POST", "/api/query", 405),
        ("GET", "/api/free", 405), ("POST", "/api/debug", 405), ("POST", "/api/healthcheck", 405),
        ("GET", "/api/other", 404), ("GET", "/api", 404), ("POST", "/api/write/more", 404),
        ("POST", "/api/write", 200), ("GET", "/api/debug", 200), ("GET", "/metrics", 200),
    ],
)  # fmt: skip
def test_method_and_path_are_the_route(
    method: str, path: str, status: int, slash: str, store: RunningStore
) -> None:
    assert store.ask(method, path + slash).status == status


def test_lines_are_answered_with_an_empty_body(store: RunningStore) -> None:
    answer = store.write(lines(1, host="empty", begin=now()))
    assert (answer.status, answer.body) == (200, b"")


def test_values_can_be_read_at_once(store: RunningStore) -> None:
    begin = now() - 600
    for step in range(5):
        store.write(lines(step, host="n1", begin=begin + 60 * step))
        found = store.query(begin, now() + 60, LOAD)
        assert found[0][0]["data"] == [float(n) for n in range(step + 1)]


def test_a_bad_line_is_named_and_the_others_stored(store: RunningStore) -> None:
    begin = now() - 60
    text = (
        lines(1, host="bad", begin=begin)
        + "load,hostname=bad\n"
        + lines(2, host="bad2", begin=begin)
    )
    answer = store.write(text)
    assert answer.status == 400
    found = answer.json()
    assert (found["status"], found["stored"], found["bad"]) == ("Bad Request", 2, 1)
    assert found["lines"][0]["line"] == 2
    assert found["error"].startswith("line 2: expected")
    assert len(store.query(begin, begin + 60, LOAD | {"host": "bad2"})[0]) == 1


def test_unknown_metrics_events_and_logs_do_no_harm(store: RunningStore) -> None:
    text = 'job,function=start_job,hostname=x event="{\\"a\\": 1}" 1\nother value="x" 1\n'
    assert store.write(text).status == 200


def test_the_parameter_cluster_is_the_default(store: RunningStore) -> None:
    begin = now() - 60
    store.write(f"load,hostname=c1 value=3 {begin}\n", cluster="fox")
    assert store.query(begin, begin + 60, LOAD | {"host": "c1"})[0][0]["data"] == [3.0]


def test_infinite_sums_are_missing_and_not_in_the_log(store: RunningStore) -> None:
    begin = now() - 60
    for core in (0, 1):
        store.write(f"power,hostname=huge,type=core,type-id={core} value=1e308 {begin}\n")
    ((one,),) = store.query(begin, begin + 60, {"metric": "power", "host": "huge", "scale-by": 10})
    assert (one["data"], one["avg"]) == ([None], None)
    assert "Warning" not in store.log.read_text()


def test_gzip_and_chunks(store: RunningStore) -> None:
    begin = now() - 60
    body = gzip.compress(lines(4, host="zip", begin=begin).encode())
    assert store.ask("POST", "/api/write", body, {"Content-Encoding": "gzip"}).status == 200
    request = Request(
        f"http://127.0.0.1:{store.port}/api/write/?cluster=fox",
        data=iter([b"load,hostname=", b"chunk value=5 ", str(begin).encode()]),
        headers={"Transfer-Encoding": "chunked"}, method="POST",
    )  # fmt: skip
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    for host, value in (("zip", 4.0), ("chunk", 5.0)):
        assert store.query(begin, begin + 60, LOAD | {"host": host})[0][0]["data"] == [value]
    assert store.ask("POST", "/api/write", b"no gzip", {"Content-Encoding": "gzip"}).status == 400
    assert store.ask("POST", "/api/write", b"x", {"Content-Encoding": "br"}).status == 415


def test_a_query_is_json_in_the_body_of_a_get(store: RunningStore) -> None:
    begin = now() - 60
    store.write(lines(7, host="get", begin=begin))
    query = {"cluster": "fox", "from": begin, "to": begin + 60, "queries": [LOAD | {"host": "get"}]}
    answer = store.ask("GET", "/api/query/?version=v2", json.dumps(query))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    expected = {"data": [7], "from": begin, "to": begin + 60, "resolution": 60}
    assert answer.json() == {"results": [[expected | {"avg": 7, "min": 7, "max": 7}]]}


def test_a_query_that_is_no_json_is_an_error(store: RunningStore) -> None:
    answer = store.ask("GET", "/api/query/", "{")
    assert (answer.status, answer.json()["status"]) == (400, "Bad Request")


def test_free_releases_buffers(store: RunningStore) -> None:
    begin = now() - 3600
    store.write(lines(1, host="free", begin=begin))
    selectors = json.dumps([["fox", "free"]])
    until = f"/api/free/?to={now()}"
    for path, body, status, text in (
        ("/api/free/", selectors, 400, "'to' is a required"),
        ("/api/free/?to=x", selectors, 500, "to=x"),
        (until, "{", 400, "list of lists"),
        (until, "[[]]", 400, "names a cluster"),
        (until, '[["zoo"]]', 200, "buffers freed: 0"),
        (until, "null", 200, "buffers freed: 0"),
        (until, selectors, 200, "buffers freed: 1"),
        (until, selectors, 200, "buffers freed: 0"),
    ):
        answer = store.ask("POST", path, body)
        assert (answer.status, text in answer.body.decode()) == (status, True), answer
    assert store.query(begin, begin + 60, LOAD | {"host": "free"}) == [[]]


def test_debug_shows_buffers_as_valid_json(store: RunningStore) -> None:
    begin = now() - 3600
    store.write(lines(1, 2, host="debug", begin=begin))
    store.write(f"power,hostname=debug,type=core,type-id=1 value=1 {begin}\n")
    found = store.ask("GET", "/api/debug/?selector=fox:debug").json()
    buffer = {"start": begin - 30, "len": 2, "end": begin + 90}
    core = {"start": begin - 30, "len": 1, "end": begin + 30}
    assert found == {"data": {"load": [buffer], "core1": {"power": [core]}}}
    assert store.ask("GET", "/api/debug/").json()["data"]["fox"]["debug"] == found["data"]
    assert store.ask("GET", "/api/debug/?selector=fox:nobody").status == 400


def test_the_health_of_nodes(store: RunningStore) -> None:
    store.write(lines(1, host="well", begin=now()))
    store.write(lines(1, host="old", begin=now() - 3600))
    store.write(
        lines(1, host="part", begin=now())
        + lines(1, host="part", metric="power", begin=now() - 900)
    )
    body = {"cluster": "fox", "nodes": ["well", "old", "part", "nobody"], "metric-names": ["load"]}

    def ask(**more: Any) -> Any:
        return store.ask("GET", "/api/healthcheck/", json.dumps(body | more))

    found = ask().json()
    assert {node: one["State"] for node, one in found.items()} == {
        "well": "full", "old": "failed", "part": "full", "nobody": "failed",
    }  # fmt: skip
    assert found["nobody"]["HealthMetrics"] == ""
    assert json.loads(found["old"]["HealthMetrics"]) == {"degraded": ["load"], "missing": []}
    found = ask(**{"metric-names": ["load", "power", "clock"]}).json()
    assert found["part"]["State"] == "partial"
    assert json.loads(found["part"]["HealthMetrics"]) == {
        "degraded": ["power"],
        "missing": ["clock"],
    }
    assert ask(other=1).status == 400


# Tokens


def bearer(**claims: Any) -> dict[str, str]:
    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    text = encoded(b'{"alg": "EdDSA"}') + "." + encoded(json.dumps(claims).encode())
    return {"Authorization": f"Bearer {text}.{encoded(KEY.sign(text.encode()))}"}


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"),
    [
        ("POST", "/api/write", "", {"write", "admin", "api", None}),
        ("GET", "/api/query", "{}", {"read", "admin", "api", None}),
        ("GET", "/api/healthcheck", "{}", {"read", "admin", "api", None}),
        ("GET", "/metrics", "", {"read", "admin", "api", None}),
        ("POST", "/api/free?to=0", "[]", {"admin"}),
        ("GET", "/api/debug", "", {"admin"}),
    ],
)
def test_roles_are_enforced(
    method: str, path: str, body: str, allowed: set[str | None], closed: RunningStore
) -> None:
    for role in ("write", "read", "admin", "api", "other", None):
        claims = {} if role is None else {"roles": [role]}
        answer = closed.ask(method, path, body, bearer(**claims))
        assert answer.status == (200 if role in allowed else 403), role
    assert closed.ask(method, path, body).status == 401
    answer = closed.ask(method, path, body, bearer(exp=1))
    assert (answer.status, answer.body) == (401, b"token is expired\n")


def test_without_a_token_the_answer_is_plain_text(closed: RunningStore) -> None:
    answer = closed.ask("POST", "/api/write/", "x" * 100)
    assert (answer.status, answer.body) == (401, b"Use JWT Authentication\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_tls_from_1_2(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certify("localhost")
    (tmp_path / "store.toml").write_text(
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n[limits]\ntime = "1s"\n'
    )
    with RunningStore(tmp_path / "store", "--config", str(tmp_path / "store.toml")) as running:
        context = ssl.create_default_context(cafile=authority.certificate)
        url = f"https://localhost:{running.port}/api/debug/"
        with urlopen(url, timeout=60, context=context) as answer:
            assert answer.status == 200
        with socket.create_connection(("127.0.0.1", running.port), 30) as silent:
            assert silent.recv(1) == b""  # a handshake has the time of a request
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", running.port), 30) as plain,
            pytest.raises(OSError, match="(?i)protocol|version|alert|reset|eof"),
        ):
            old.wrap_socket(plain)


# Hostile and slow clients


def raw(store: RunningStore, *parts: bytes, wait: float = 30) -> bytes:
    """What is answered to bytes until the store closes the connection."""
    with socket.create_connection(("127.0.0.1", store.port), wait) as client:
        for part in parts:
            client.sendall(part)
        found = b""
        try:
            while part := client.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


@pytest.mark.parametrize(
    "request_text",
    [
        b"no http\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/write HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /api/write HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        b"POST /api/write HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
    ],
)  # fmt: skip
def test_bad_requests_are_refused_and_closed(request_text: bytes, store: RunningStore) -> None:
    found = raw(store, request_text)
    assert found.startswith(b"HTTP/1.1 4")
    assert b"Connection: close" in found


def test_a_body_that_inflates_too_far_is_refused(store: RunningStore) -> None:
    body = gzip.compress(b"\n" * (64 << 20))
    assert store.ask("POST", "/api/write", body, {"Content-Encoding": "gzip"}).status == 413


def test_a_body_in_chunks_has_the_same_limit(store: RunningStore) -> None:
    chunk = b"10000\r\n" + b"\n" * 65536 + b"\r\n"
    found = raw(
        store, b"POST /api/write HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 17
    )
    assert found.startswith(b"HTTP/1.1 413")


def test_slow_clients_are_closed_and_hold_nobody_up(store: RunningStore) -> None:
    begin = b"POST /api/write HTTP/1.1\r\nContent-Length: 10\r\n\r\nlo"
    slow = [socket.create_connection(("127.0.0.1", store.port), 30) for _ in range(50)]
    for client in slow:
        client.sendall(begin)
    assert store.write(lines(1, host="quick", begin=now())).status == 200
    for client in slow:
        assert client.recv(100) == b""
        client.close()


def test_several_requests_at_once_are_answered_in_order(store: RunningStore) -> None:
    text = lines(3, host="pipe", begin=now()).encode()
    write = b"POST /api/write HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
    debug = b"GET /api/debug/?selector=fox:pipe HTTP/1.1\r\n\r\n"
    last = b"GET /api/other HTTP/1.1\r\nConnection: close\r\n\r\n"
    found = raw(store, (write + debug) * 30 + last)
    assert found.count(b"HTTP/1.1 200 OK") == 60
    assert found.count(b'"load"') == 30
    assert found.index(b"HTTP/1.1 404") > found.rindex(b"HTTP/1.1 200")


def test_an_upgrade_is_ignored(store: RunningStore, tmp_path: Path) -> None:
    when = now()
    body = tmp_path / "lines"
    body.write_text(lines(1, host="curl", begin=when))
    url = f"http://127.0.0.1:{store.port}/api/write/?cluster=fox"
    assert ask_with_curl(url, "--data-binary", f"@{body}") == 200
    text = lines(2, host="raw", begin=when).encode()
    found = ask_for_upgrades(store.port, b"POST /api/write HTTP/1.1", text)
    assert found == [[200, 404]] * 8
    for host, value in (("curl", 1), ("raw", 2)):
        ((one,),) = store.query(when - 60, when + 60, LOAD | {"host": host})
        assert value in one["data"]
    # A body that looks like a request is none.
    hidden = b"# \r\nGET /metrics HTTP/1.1\r\n\r\n"
    found = ask_for_upgrades(store.port, b"POST /api/write HTTP/1.1", hidden)
    assert {len(one) for one in found} == {2}
    assert statuses(store.port, PREFACE) == [400]


def test_100_continue(store: RunningStore) -> None:
    with socket.create_connection(("127.0.0.1", store.port), 30) as client:
        client.sendall(
            b"POST /api/write HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_the_numbers_of_the_store(store: RunningStore) -> None:
    answer = store.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"# TYPE ccagent_store_points_total counter\n" in answer.body


def test_an_answer_of_many_parts(store: RunningStore) -> None:
    begin = now() - 60
    store.write(lines(1, host="many", begin=begin))
    found = store.query(begin, begin + 60, *[LOAD | {"host": "many"}] * 2000)
    assert len(found) == 2000


# Jobs


def test_jobs_are_taken_and_asked_by_number(store: RunningStore) -> None:
    begin = now() - 600
    text = lines(1, 2, 3, 4, host="j1", begin=begin) + lines(5, 6, 7, 8, host="j2", begin=begin)
    resources = [{"hostname": "j1"}, {"hostname": "j2"}]
    started = {"jobId": 42, "cluster": "fox", "startTime": begin + 60, "resources": resources}
    event = json.dumps(started).replace('"', '\\"')
    assert store.write(f'{text}job,function=start_job event="{event}" 1\n').status == 200
    body = {"queries": [{"metric": "load"}], "to": begin + 180}
    answer = store.ask("GET", "/api/query/?job=42", json.dumps(body)).json()
    assert [one["data"] for (one,) in answer["results"]] == [[2, 3], [6, 7]]
    answer = store.ask("GET", "/api/job/?job=42&cluster=fox").json()
    assert (answer[0]["nodes"], answer[0]["state"]) == (["j1", "j2"], "running")
    assert store.ask("GET", "/api/query/?job=43", json.dumps(body)).status == 400
    assert store.ask("POST", "/api/jobs/", "{").status == 400


def test_version_2_of_the_query(store: RunningStore) -> None:
    begin = now() - 600
    store.write(lines(1, 2, host="v2", begin=begin))
    body = {
        "cluster": "fox",
        "from": begin,
        "to": begin + 120,
        "metrics": ["load"],
        "hosts": ["v2"],
    }
    for method in ("GET", "POST"):
        answer = store.ask(method, "/api/query/?version=2", json.dumps(body))
        assert answer.json()["series"][0]["values"] == [1, 2]
    answer = store.ask("POST", "/api/query/?version=2", json.dumps(body | {"format": "csv"}))
    assert answer.headers["Content-Type"].startswith("text/csv")


def test_gzip_of_very_many_members_is_refused(store: RunningStore) -> None:
    body = gzip.compress(b"") * 40_000
    answer = store.ask("POST", "/api/write", body, {"Content-Encoding": "gzip"})
    assert (answer.status, "100 members" in answer.body.decode()) == (400, True)


def test_a_query_has_not_too_many_components(store: RunningStore) -> None:
    query = LOAD | {"type": "core", "type-ids": [""] * 20_000}
    body = {"cluster": "fox", "from": 0, "to": 60, "queries": [query], "with-data": False}
    assert store.ask("GET", "/api/query", json.dumps(body)).status == 400


def test_a_client_that_does_not_read_its_answer_is_closed(store: RunningStore) -> None:
    store.write(lines(1, host="n1", begin=now()))
    queries = [LOAD] * 90
    body = json.dumps(
        {"cluster": "fox", "from": now() - 6_000_000, "to": now(), "queries": queries}
    )
    head = f"GET /api/query/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", store.port), 30) as client:
        client.sendall((head + body).encode())
        assert store.query(now() - 600, now() + 60, LOAD)[0]
        # Its connection disappears from the numbers, without it having read a byte.
        until(lambda: b"ccagent_store_connections 1\n" in store.ask("GET", "/metrics").body, 60)
