"""`http://` and `https://` against a real server that answers as it is told to."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ccagent import __version__
from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.errors import (
    ConfigurationError,
    RejectedError,
    RetryableError,
    TooLargeError,
    TransportError,
)
from ccagent.net.error_texts import WITHHELD
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.records.message import Format, Message
from ccagent.transports.http import HttpSettings, HttpTransport
from ccagent.transports.http_server import parse_retry_after
from tests.support.http_server import (
    PASSWORD,
    Server,
    answer_and_hang_up,
    drip,
    echo_everything,
    hang_up,
    never,
    raw,
    refuse_unread,
    say,
)
from tests.support.tree import StillClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.http_server import Handler

TOKEN = "eyJhbGciOiJFZERTQSJ9.e30.c2ln"


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., HttpTransport]]:
    """Make transports to the server, with the keys that a test wants."""
    made: list[HttpTransport] = []

    def make(path: str = "", **keys: Any) -> HttpTransport:
        keys.setdefault("time_limit", Duration("5s"))
        made.append(HttpTransport(HttpSettings(url=f"http://{server.place}{path}", **keys)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def message(
    body: bytes = b'{"a":1}', kind: str = "sample", form: Format = "sonar", prefix: str = ""
) -> Message:
    return Message("fox", "c1-1", kind, form, 1_700_000_000.0, body, prefix)


POINTS = message(b"load,hostname=c1-1 value=1 1700000000\n", "metrics", "line")


@pytest.mark.parametrize(
    ("path", "sent", "expected"),
    [
        ("", message(), "/sample"),
        ("/", message(), "/sample"),
        ("/api/v1/insert", message(kind="sysinfo"), "/api/v1/insert/sysinfo"),
        ("/api/v1/insert/", message(kind="job"), "/api/v1/insert/job"),
        ("/api", message(prefix="test"), "/api/test.sample"),
        ("/api?key=1", message(), "/api/sample?key=1"),
        ("/{cluster}/{node}/in", message(), "/fox/c1-1/in"),
        ("/in?what={kind}", message(prefix="test"), "/in?what=test.sample"),
        ("", POINTS, "/"),
        ("/api/write/?cluster=alex", POINTS, "/api/write/?cluster=alex"),
        ("/write?db=x&precision=s", POINTS, "/write?db=x&precision=s"),
        ("/api/write/?cluster={cluster}", POINTS, "/api/write/?cluster=fox"),
    ],
)
def test_where_messages_go(
    server: Server, connect: Callable[..., HttpTransport], path: str, sent: Message, expected: str
) -> None:
    connect(path, format=sent.format).send([sent])
    assert [(r.path, r.body) for r in server.requests] == [(expected, sent.body)]


@pytest.mark.parametrize(
    ("sent", "kind"),
    [(message(), "application/json"), (POINTS, "text/plain; charset=utf-8")],
)
def test_a_request_says_what_it_is_and_who_sends_it(
    server: Server, connect: Callable[..., HttpTransport], sent: Message, kind: str
) -> None:
    connect().send([sent])
    headers = server.requests[0].headers
    assert headers["Content-Type"] == kind
    assert headers["User-Agent"] == f"ccagent/{__version__}"
    assert "Authorization" not in headers


def test_one_connection_carries_all(server: Server, connect: Callable[..., HttpTransport]) -> None:
    transport = connect()
    server.script.extend([200, say(201, b'{"fine":true}'), 204])
    transport.send([message(), message()])
    transport.send([message()])
    assert len({r.client for r in server.requests}) == 1
    assert len(server.requests) == 3


def test_a_closed_transport_connects_again(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    transport = connect()
    transport.send([message()])
    transport.close()
    transport.send([message()])
    assert len({r.client for r in server.requests}) == 2


def test_a_server_may_close_a_kept_connection(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    transport = connect()
    server.script.extend([answer_and_hang_up, 204])
    transport.send([message(b"1")])
    assert server.closed.wait(60)
    transport.send([message(b"2"), message(b"3")])
    assert [r.body for r in server.requests] == [b"1", b"2", b"3"]
    assert len({r.client for r in server.requests}) == 2


def test_a_kept_connection_is_tried_again_only_once(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.extend([204, hang_up, hang_up, 204])
    with pytest.raises(RetryableError) as caught:
        connect().send([message(b"1"), message(b"2")])
    assert caught.value.delivered == 1
    assert [r.body for r in server.requests] == [b"1", b"2", b"2"]


def test_a_text_before_a_request_is_not_its_answer(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    is_answered, is_written = threading.Event(), threading.Event()

    def answer_twice(handler: Handler) -> None:
        say(200)(handler)
        assert is_answered.wait(60)
        say(200)(handler)
        is_written.set()

    server.script.extend([answer_twice, 422])
    transport = connect()
    transport.send([message(b"1")])
    is_answered.set()
    assert is_written.wait(60)
    with pytest.raises(RejectedError):
        transport.send([message(b"2")])


@pytest.mark.parametrize("status", [100, 102, 103])
def test_an_informational_answer_is_not_the_last_one(
    server: Server, connect: Callable[..., HttpTransport], status: int
) -> None:
    def inform(handler: Handler) -> None:
        handler.send_response_only(status)
        handler.end_headers()
        say(422)(handler)

    server.script.append(inform)
    transport = connect()
    with pytest.raises(RejectedError):
        transport.send([message(b"1")])
    transport.send([message(b"2")])


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_be_taken_later(
    server: Server, connect: Callable[..., HttpTransport], status: int
) -> None:
    server.script.extend([204, say(status, b"come\nback")])
    transport = connect("/in")
    with pytest.raises(RetryableError, match=rf"/in: {status} .*: come\\nback$") as caught:
        transport.send([message(), message(), message()])
    assert caught.value.delivered == 1
    assert len(server.requests) == 2
    transport.send([message(), message()])
    assert len({r.client for r in server.requests}) == 1


@pytest.mark.parametrize(("status", "error"), [(413, TooLargeError), (422, RejectedError)])
def test_what_never_will_be_taken(
    server: Server, connect: Callable[..., HttpTransport], status: int, error: type[TransportError]
) -> None:
    server.script.extend([204, 204, say(status, b"no")])
    expected = rf"http://{server.place}/in: {status} .*: no$"
    with pytest.raises(RejectedError, match=expected) as caught:
        connect("/in?key=hidden").send([message()] * 4)
    assert type(caught.value) is error
    assert caught.value.delivered == 2
    assert "hidden" not in str(caught.value)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("said", "status"),
    [("partial write: field type conflict dropped=1", 400), ("unable to parse", 400),
     ("partial write: 3 values refused, 80 stored", 429),
     ("partial write: 3 values refused, 80 stored", 507)],
)  # fmt: skip
def test_a_database_that_has_read_the_lines_rejects_them(
    server: Server, connect: Callable[..., HttpTransport], said: str, status: int
) -> None:
    server.script.append(say(status, json.dumps({"error": said}).encode()))
    with pytest.raises(RejectedError, match=said):
        connect("/write", format="line").send([POINTS])


STATUSES = [*range(300, 309), *range(400, 419), *range(421, 432), 451, *range(500, 512), 520, 599]


@pytest.mark.parametrize("status", [s for s in STATUSES if s not in {413, 422}])
def test_a_wrongly_configured_server_rejects_nothing(
    server: Server, connect: Callable[..., HttpTransport], status: int
) -> None:
    server.script.extend([204, say(status, b"", Location="/elsewhere")])
    with pytest.raises(RetryableError, match=f": {status} ") as caught:
        connect("/in").send([message(), message(), message()])
    assert caught.value.delivered == 1
    assert caught.value.is_busy == (status in {429, 503, 507})
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "path", "is_about_message"),
    [
        (400, "", True),
        (401, "", False),
        (403, "", True),
        (403, "/{cluster}", False),
        (404, "", True),
        (404, "/all", True),
        (404, "/{cluster}/{kind}", True),
        (404, "/{cluster}/in", False),
        (407, "", False),
        (408, "", False),
        (429, "", False),
        (302, "", False),
        (500, "", True),
        (501, "", False),
        (502, "", True),
        (503, "", False),
        (504, "", True),
    ],
)
def test_an_answer_tells_whether_others_may_pass(
    server: Server,
    connect: Callable[..., HttpTransport],
    status: int,
    path: str,
    is_about_message: bool,
) -> None:
    server.script.append(status)
    with pytest.raises(RetryableError) as caught:
        connect(path).send([message()])
    assert caught.value.is_about_message is is_about_message


def test_a_cluster_that_is_unknown_keeps_the_order(server: Server) -> None:
    """sonalyze answers so until data/CLUSTER exists (daemon/apiutil/apiutil.go)."""
    text = b'{"status":400,"detail":"/insert/sysinfo: Failed to find cluster fox"}'
    server.script.extend([say(400, text)] * 4)
    queue = Queue("backend", OutboxSettings())
    queue.put([message(b"%d" % number, kind) for number in range(8) for kind in ("sample", "job")])
    sent = [each.message for each in queue.next_batch(99)]
    clock = StillClock()
    transport = HttpTransport(HttpSettings(url=f"http://{server.place}"))
    sender = Sender("backend", queue, transport, monotonic=clock.monotonic)
    while queue.count():
        clock.sleep(sender.send_next().wait or 0.0)
    sender.close()
    assert [each.body for each in server.requests[:5]] == [sent[0].body] * 5
    assert [each.body for each in server.requests[4:]] == [each.body for each in sent]


@pytest.mark.parametrize(("path", "is_about_message"), [("/write", False), ("/{kind}", True)])
def test_points_have_a_place_of_their_own_only_by_template(
    server: Server, connect: Callable[..., HttpTransport], path: str, is_about_message: bool
) -> None:
    server.script.append(404)
    with pytest.raises(RetryableError) as caught:
        connect(path, format="line").send([POINTS])
    assert caught.value.is_about_message is is_about_message


def test_a_server_that_breaks_off_may_do_so_for_one_message(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(hang_up)
    with pytest.raises(RetryableError, match="closed the connection without an answer") as caught:
        connect().send([message()])
    assert caught.value.is_about_message


@pytest.mark.parametrize(
    "cut",
    [
        b"Content-Length: 10\r\n\r\nfine",
        b"Content-Length: 10\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nfi",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n",
    ],
)
def test_success_that_is_cut_off_is_none(
    server: Server, connect: Callable[..., HttpTransport], cut: bytes
) -> None:
    server.script.append(raw(b"HTTP/1.1 200 OK\r\n" + cut))
    transport = connect()
    with pytest.raises(RetryableError, match="ended in the middle of the answer$") as caught:
        transport.send([message()])
    assert caught.value.delivered == 0
    transport.send([message()])


def test_a_refusal_that_is_cut_off_is_one(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(raw(b"HTTP/1.1 422 No\r\nContent-Length: 10\r\n\r\nno"))
    with pytest.raises(RejectedError, match="422 Unprocessable Entity: no$"):
        connect().send([message()])


@pytest.mark.parametrize(
    "step",
    [
        hang_up,
        raw(b"\x00\x01\x02 neither HTTP nor text \xff\r\n\r\n"),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"HTTP/1.1 2xx fine\r\n\r\n"),
        raw(b"HTTP/1.1 200 fine\r\n" + b"A: b\r\n" * 1000),
        raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000),
        raw(b"HTTP/1.1 200 fine\r\n" + (b"A: " + b"b" * 60_000 + b"\r\n") * 50),
        raw(b"HTTP/1.1 200 fine\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        raw(b"HTTP/1.1 200 fine\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n12345"),
        raw(b"x" * 200_000),
    ],
)
def test_a_broken_answer_may_be_mended(
    server: Server, connect: Callable[..., HttpTransport], step: Callable[[Handler], None]
) -> None:
    server.script.append(step)
    transport = connect()
    with pytest.raises(RetryableError, match=f"^http://{server.place}: ") as caught:
        transport.send([message()])
    assert caught.value.delivered == 0
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    transport.send([message()])


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/2.0 200 fine\r\n\r\n"])
def test_a_server_of_another_protocol_is_named_as_such(
    server: Server, connect: Callable[..., HttpTransport], text: bytes
) -> None:
    server.script.append(raw(text))
    with pytest.raises(RetryableError, match="does not speak HTTP/1: (SSH|HTTP/2.0)"):
        connect().send([message()])


@pytest.mark.parametrize("step", [never, drip])
def test_an_answer_has_a_time_limit(
    server: Server, connect: Callable[..., HttpTransport], step: Callable[[Handler], None]
) -> None:
    server.script.extend([204, step])
    transport = connect(time_limit=Duration("200ms"))
    begin = time.monotonic()
    with pytest.raises(RetryableError, match="no answer within") as caught:
        transport.send([message(), message()])
    assert 0.15 < time.monotonic() - begin < 30
    assert caught.value.delivered == 1
    assert len(server.requests) == 2
    transport.send([message()])


def test_each_answer_has_the_whole_time_limit(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    def slowly(handler: Handler) -> None:
        time.sleep(0.2)
        say(204)(handler)

    server.script.extend([slowly] * 4)
    connect(time_limit=Duration("500ms")).send([message()] * 4)
    assert len({r.client for r in server.requests}) == 1


def test_a_huge_answer_is_not_read(server: Server, connect: Callable[..., HttpTransport]) -> None:
    server.script.extend([say(200, b"y" * 50_000_000), say(422, b"n" * 50_000_000)])
    transport = connect()
    transport.send([message()])
    with pytest.raises(RejectedError) as caught:
        transport.send([message()])
    assert len(str(caught.value)) < 300
    transport.send([message()])
    assert len({r.client for r in server.requests}) == 3


def test_an_answer_without_a_length_ends_with_its_connection(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.extend([raw(b"HTTP/1.0 200 OK\r\n\r\nfine")])
    connect().send([message(), message()])
    assert len({r.client for r in server.requests}) == 2


def test_a_refusal_is_heard_while_the_body_is_still_on_its_way(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(refuse_unread)
    with pytest.raises(TooLargeError, match=r"413 .*too large"):
        connect().send([message(b" " * 20_000_000)])


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/in"
        with pytest.raises(RetryableError, match=f"^{url}: connection refused"):
            HttpTransport(HttpSettings(url=url)).send([message()])


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70])
def test_no_such_host(host: str) -> None:
    transport = HttpTransport(HttpSettings(url=f"http://{host}/"))
    with pytest.raises(RetryableError, match=f"^http://{host}/: the name does not resolve: "):
        transport.send([message()])


@pytest.mark.parametrize(("user", "expected"), [("", "fox"), ("ingest", "ingest")])
def test_a_password_goes_with_the_user_or_the_cluster(
    server: Server,
    connect: Callable[..., HttpTransport],
    secret: Callable[[str], str],
    user: str,
    expected: str,
) -> None:
    connect(user=user, password_file=secret(PASSWORD)).send([message()])
    kind, credentials = server.requests[0].headers["Authorization"].split()
    assert kind == "Basic"
    assert base64.b64decode(credentials).decode() == f"{expected}:{PASSWORD}"


def test_a_new_token_needs_no_restart(
    server: Server, connect: Callable[..., HttpTransport], secret: Callable[[str], str]
) -> None:
    transport = connect(token_file=secret(TOKEN))
    transport.send([message()])
    secret("renewed")
    transport.send([message()])
    assert [r.headers["Authorization"] for r in server.requests] == [
        f"Bearer {TOKEN}",
        "Bearer renewed",
    ]


@pytest.mark.parametrize("step", [echo_everything, raw(f"HTTP/{TOKEN} {PASSWORD}\r\n".encode())])
@pytest.mark.parametrize("key", ["password_file", "token_file"])
def test_no_error_shows_a_secret(
    server: Server,
    connect: Callable[..., HttpTransport],
    secret: Callable[[str], str],
    step: Callable[[Handler], None],
    key: str,
) -> None:
    value = PASSWORD if key == "password_file" else TOKEN
    server.script.append(step)
    with pytest.raises((RejectedError, RetryableError)) as caught:
        connect(**{key: secret(value)}).send([message()])
    assert value not in str(caught.value)
    assert server.requests[0].headers["Authorization"].split()[1] not in str(caught.value)
    assert str(caught.value).endswith(WITHHELD)


def test_no_success_shows_a_secret(
    server: Server, connect: Callable[..., HttpTransport], secret: Callable[[str], str]
) -> None:
    server.script.append(say(200, json.dumps({"you": PASSWORD}).encode()))
    transport = connect(password_file=secret(PASSWORD))
    transport.send([message()])
    assert transport.answer == f"200 OK: {WITHHELD}"


def test_a_secret_that_went_away_may_come_back(
    server: Server, connect: Callable[..., HttpTransport], secret: Callable[[str], str]
) -> None:
    path = secret(TOKEN)
    transport = connect(token_file=path)

    def spoil(handler: Handler) -> None:
        secret("Schlüssel")
        say(204)(handler)

    server.script.append(spoil)
    with pytest.raises(RetryableError, match=f"^{path}: a token is ASCII") as caught:
        transport.send([message(), message()])
    assert caught.value.delivered == 1
    secret("")
    with pytest.raises(RetryableError, match=f"^{path}: its first line holds no secret"):
        transport.send([message()])
    secret(TOKEN)
    transport.send([message()])


@pytest.mark.parametrize("key", ["password_file", "token_file"])
def test_a_secret_that_others_can_read_is_refused(
    connect: Callable[..., HttpTransport], secret: Callable[[str], str], tmp_path: Path, key: str
) -> None:
    path = secret(PASSWORD)
    (tmp_path / "secret").chmod(0o604)
    with pytest.raises(ConfigurationError, match="others can read") as caught:
        connect(**{key: path})
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "ingest.example.org", "[2001:db8::1]", "127.example"]
)
def test_a_secret_travels_unencrypted_only_on_demand(
    secret: Callable[[str], str], host: str
) -> None:
    url, path = f"http://{host}:8080/in", secret(TOKEN)
    with pytest.raises(ConfigurationError, match="unencrypted"):
        HttpTransport(HttpSettings(url=url, token_file=path))
    HttpTransport(HttpSettings(url=url, token_file=path, allow_cleartext=True))
    HttpTransport(HttpSettings(url=url.replace("http", "https", 1), token_file=path))
    HttpTransport(HttpSettings(url=url))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_a_secret_may_stay_on_this_machine(secret: Callable[[str], str], host: str) -> None:
    HttpTransport(HttpSettings(url=f"http://{host}/in", password_file=secret(PASSWORD)))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://", "HOST"),
        ("http:///path", "HOST"),
        ("http://h:0/", "HOST"),
        ("http://h/a b", "spaces"),
        ("http://h/ä", "ASCII"),
        ("http://h/\x1b[2J", "printable"),
        ("http://h:port/", "malformed"),
        ("http://h:99999/", "malformed"),
        ("http://[::1/", "malformed"),
        ("http://fox:hidden@h/", "password-file"),
        ("http://fox:hidden@h:99999/", "password-file"),
        ("http://fox:hid/den@h/", "password-file"),
        ("http://fox:hidden@/\n", "password-file"),
        ("http://h/{knd}", "{kind}, {cluster}, {node}"),
        ("http://{cluster}.example/", "HOST"),
    ],
)
def test_urls_that_cant_work_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HttpTransport(HttpSettings(url=url))
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert "hid" not in str(caught.value)


def test_keys_that_exclude_or_need_each_other(secret: Callable[[str], str]) -> None:
    path, url = secret(PASSWORD), "https://h/"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"password_file": path, "token_file": path}, "exclude each other"),
        ({"user": "fox"}, "needs a password-file"),
        ({"user": "fox", "token_file": path}, "needs a password-file"),
        ({"user": "fox:1", "password_file": path}, "colon"),
        ({"time_limit": Duration("0s")}, "time-limit"),
        ({"time_limit": Duration("2d")}, "time-limit"),
        ({"ca_file": "/nowhere/ca.pem"}, "^ca-file: /nowhere/ca.pem: No such file"),
        ({"ca_file": path}, f"^ca-file: {path}: "),
    ]
    for keys, reason in cases:
        with pytest.raises(ConfigurationError, match=reason):
            HttpTransport(HttpSettings(url=url, **keys))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://[::1]/in", "::1", 80),
        ("https://[::1]/in", "::1", 443),
        ("http://[::1]:8086/in", "::1", 8086),
        ("https://ingest.example.org", "ingest.example.org", 443),
    ],
)
def test_hosts_and_ports(url: str, host: str, port: int) -> None:
    assert HttpTransport(HttpSettings(url=url))._server._connection._server == (host, port)


def test_an_envelope_arrives_as_it_was_encoded(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    body = json.dumps({"node": "nœud", "fill": "x" * 300_000}, ensure_ascii=False).encode()
    connect().send([message(body)])
    assert server.requests[0].body == body


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("", 0),
        ("-5", 0),
        ("soon", 0),
        ("9" * 400, 0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 99 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 14 Nov 99999 22:13:00 +9999", 0),
        (", ,", 0),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    assert parse_retry_after(value, 1_700_000_000.0) == seconds


def test_a_busy_server_says_when_to_come_back(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(say(429, b"", **{"Retry-After": "17"}))
    with pytest.raises(RetryableError) as caught:
        connect().send([message()])
    assert caught.value.after == 17


def test_requests_are_compressed_on_demand(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    connect(gzip=True).send([message(b"x" * 10_000)])
    (request,) = server.requests
    assert request.headers["Content-Encoding"] == "gzip"
    assert len(request.body) < 100
    assert gzip.decompress(request.body) == b"x" * 10_000


def points(*values: int, node: str = "c1-1") -> Message:
    lines = "".join(f"load,hostname={node} value={value} 1700000000\n" for value in values)
    return Message("fox", node, "metrics", "line", 1_700_000_000.0, lines.encode())


def test_points_of_many_messages_go_in_one_request(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    sent = [points(number, number) for number in range(500)]
    connect("/write", format="line").send(sent)
    assert [r.body for r in server.requests] == [b"".join(m.body for m in sent)]


def test_requests_stay_below_the_limit_and_end_with_a_line(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    sent = [points(1), points(*range(100)), points(2), points(3)]
    connect("/write", format="line", max_payload=1000).send(sent)
    bodies = [r.body for r in server.requests]
    assert b"".join(bodies) == b"".join(m.body for m in sent)
    assert all(body.endswith(b"\n") and len(body) <= 1000 for body in bodies)
    assert len(bodies) == 6


def test_a_line_above_the_limit_goes_alone(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    connect("/write", format="line", max_payload=10).send([points(1, 2)])
    assert [r.body for r in server.requests] == [points(1).body, points(2).body]


def test_points_of_different_nodes_go_to_their_own_places(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    connect("/{node}", format="line").send([points(1), points(2, node="c1-2"), points(3)])
    assert [r.path for r in server.requests] == ["/c1-1", "/c1-2", "/c1-1"]


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_refused_message_costs_no_other_of_its_request(
    server: Server, connect: Callable[..., HttpTransport], status: int
) -> None:
    taken: list[bytes] = []

    def refuse_7(handler: Handler) -> None:
        body = handler.owner.requests[-1].body
        is_refused = points(7).body in body
        if not is_refused:
            taken.append(body)
        (say(status, b"no") if is_refused else say(204))(handler)

    server.script.extend([refuse_7] * 30)
    with pytest.raises(TransportError, match=": no$") as caught:
        connect("/write", format="line").send([points(number) for number in range(12)])
    assert isinstance(caught.value, RejectedError if status == 422 else RetryableError)
    assert caught.value.delivered == 7
    assert b"".join(taken) == b"".join(points(number).body for number in range(7))
    assert len(server.requests) < 10


def test_requests_shrink_below_the_limit_of_a_server(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    def refuse_large(handler: Handler) -> None:
        say(413 if len(handler.owner.requests[-1].body) > 50_000 else 200)(handler)

    server.script.extend([refuse_large] * 200)
    transport = connect("/write", format="line")
    sent = [points(*range(1000)), points(*range(10000)), points(1)]
    transport.send(sent)
    lines = b"".join(r.body for r in server.requests if len(r.body) <= 50_000)
    assert set(lines.splitlines()) == set(b"".join(m.body for m in sent).splitlines())
    before = len(server.requests)
    transport.send(sent)
    assert all(len(r.body) <= 50_000 for r in server.requests[before:])


def test_an_envelope_above_the_limit_of_a_server_is_too_large(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(413)
    with pytest.raises(TooLargeError) as caught:
        connect().send([message(b" " * 100_000)])
    assert caught.value.limit is None


def test_the_largest_body_is_that_of_the_settings(connect: Callable[..., HttpTransport]) -> None:
    assert connect(max_payload=70_000).largest_body == 70_000


def test_what_may_be_taken_later_is_not_taken_apart(
    server: Server, connect: Callable[..., HttpTransport]
) -> None:
    server.script.append(503)
    with pytest.raises(RetryableError) as caught:
        connect("/write", format="line").send([points(0), points(1), points(2)])
    assert caught.value.delivered == 0
    assert len(server.requests) == 1


def test_a_proxy_gets_the_whole_url(server: Server) -> None:
    settings = HttpSettings(url="http://ingest.invalid:81/in?a=1", proxy=f"http://{server.place}")
    transport = HttpTransport(settings)
    transport.send([message()])
    transport.close()
    (request,) = server.requests
    assert request.path == "http://ingest.invalid:81/in/sample?a=1"
    assert request.headers["Host"] == "ingest.invalid:81"


@pytest.mark.parametrize(
    "proxy", ["proxy:3128", "https://h", "http://fox:hidden@h", "http://h/path", "http://"]
)
def test_a_proxy_that_cant_be_used_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="^proxy: ") as caught:
        HttpTransport(HttpSettings(url="https://h/", proxy=proxy))
    assert "hidden" not in str(caught.value)


def test_a_secret_travels_unencrypted_to_no_proxy(secret: Callable[[str], str]) -> None:
    with pytest.raises(ConfigurationError, match="unencrypted"):
        HttpTransport(
            HttpSettings(url="http://localhost/", proxy="http://h", token_file=secret(TOKEN))
        )


def test_the_environment_names_no_proxy(
    server: Server, connect: Callable[..., HttpTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid")
    connect("/in").send([message()])
    assert len(server.requests) == 1
