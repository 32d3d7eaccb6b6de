"""`kprox://` against a server with the framing of Sonar's REST proxy for Kafka.

Source: Sonar 0.19, util/kafka-proxy/kprox.go: the protocol in its first comment.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.records.message import Message
from ccagent.transports.base import build_transport
from ccagent.transports.kprox import KproxSettings, KproxTransport
from tests.support.http_server import Handler, Request, Server, say

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ccagent.transports.base import Transport
    from tests.support.certificates import Authority

PASSWORD = 's3"cret\\ é'
TYPES = {"topic": str, "key": str, "client": str, "data-size": int}
LOGIN = {"sasl-user": str, "sasl-password": str}


class RefusedError(Exception):
    """The frames of a request are malformed."""


def read_frames(payload: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield control objects and data, by the rules of the proxy. Raise RefusedError."""
    while payload := payload.lstrip(b"\n"):
        line, newline, payload = payload.partition(b"\n")
        if not newline:
            raise RefusedError("Trailing junk")
        control = json.loads(line)
        size = control["data-size"]
        if size > len(payload):
            raise RefusedError("Out of bounds data length")
        yield control, payload[:size]
        payload = payload[size:]


class Proxy(Server):
    """Answers as the proxy does. logins: the password of each cluster; None: none is needed."""

    def __init__(
        self, logins: dict[str, str] | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.logins = logins
        self.limit = 1 << 30
        self.got: list[tuple[dict[str, Any], bytes]] = []
        super().__init__(context)
        self.RequestHandlerClass = ProxyHandler

    @property
    def topics(self) -> list[str]:
        return [control["topic"] for control, _ in self.got]

    def receive(self, request: Request) -> tuple[int, str]:
        """Return status and text of the answer. Frames before a bad one are kept."""
        if request.headers["Content-Type"] != "application/octet-stream":
            return 400, "Bad content-type"
        if len(request.body) > self.limit:
            return 413, "Request Entity Too Large"
        try:
            for control, data in read_frames(request.body):
                login = (control.get("sasl-user", ""), control.get("sasl-password", ""))
                if self.logins is not None and login not in self.logins.items():
                    return 401, "Bad credentials"
                self.got.append((control, data))
        except RefusedError as error:
            return 400, str(error)
        return 200, "Ok"


class ProxyHandler(Handler):
    """Answers POST requests only."""

    def do_HEAD(self) -> None:  # noqa: N802 - its name in the base
        say(403)(self)

    def do_POST(self) -> None:  # noqa: N802 - its name in the base
        if not self.owner.script:
            self.owner.script.append(self.answer)
        super().do_POST()

    def answer(self, handler: Handler) -> None:
        owner = self.owner
        assert isinstance(owner, Proxy)
        status, text = owner.receive(owner.requests[-1])
        say(status, text.encode())(handler)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = Proxy()
    yield server
    server.stop()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def connect() -> Iterator[Callable[..., Transport]]:
    """Make transports to a proxy, with the keys that a test wants."""
    made: list[Transport] = []

    def make(server: Proxy, scheme: str = "kprox", **keys: Any) -> Transport:
        table = {"url": f"{scheme}://{server.place}/kprox"}
        table |= {name.replace("_", "-"): value for name, value in keys.items()}
        made.append(build_transport(check_sink(table, "backend", "test")))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def message(number: int = 1, kind: str = "sample", body: bytes = b"", prefix: str = "") -> Message:
    text = body or b'{"n":%d}' % number
    return Message("fox", f"c1-{number}", kind, "sonar", 1_700_000_000.0, text, prefix)


def test_messages_share_a_request_in_frames(
    proxy: Proxy, connect: Callable[..., Transport]
) -> None:
    sent = [message(1), message(2, "job", b'{"a":"\n\n{}\n"}'), message(3, prefix="test")]
    transport = connect(proxy)
    transport.send(sent)
    assert [request.path for request in proxy.requests] == ["/kprox"]
    assert [data for _, data in proxy.got] == [each.body for each in sent]
    assert proxy.topics == ["fox.sample", "fox.job", "test.fox.sample"]
    for (control, _), each in zip(proxy.got, sent, strict=True):
        assert {name: type(value) for name, value in control.items()} == TYPES
        assert (control["key"], control["client"]) == (each.node, f"fox/{each.node}")
    assert transport.answer == "200 OK: Ok"


def test_a_login_is_in_each_frame_and_in_no_header(
    password: Path, connect: Callable[..., Transport]
) -> None:
    proxy = Proxy({"fox": PASSWORD})
    try:
        connect(proxy, password_file=str(password)).send([message(1), message(2)])
        assert len(proxy.got) == 2
        for control, _ in proxy.got:
            assert {name: type(value) for name, value in control.items()} == TYPES | LOGIN
        assert "Authorization" not in proxy.requests[0].headers
        with pytest.raises(RetryableError, match=r"401 Unauthorized: Bad credentials") as caught:
            connect(proxy, user="owl", password_file=str(password)).send([message()])
        assert not caught.value.is_about_message
    finally:
        proxy.stop()


def test_a_request_is_limited_by_max_payload(
    proxy: Proxy, connect: Callable[..., Transport]
) -> None:
    sent = [message(number, body=b"x" * 300) for number in range(6)]
    connect(proxy, max_payload=1000).send(sent)
    assert [len(request.body) <= 1000 for request in proxy.requests] == [True] * 3
    assert [data for _, data in proxy.got] == [each.body for each in sent]


def test_a_web_server_before_the_proxy_may_take_less(
    proxy: Proxy, connect: Callable[..., Transport]
) -> None:
    proxy.limit = 500
    sent = [message(number, body=b"x" * 300) for number in range(4)]
    transport = connect(proxy)
    transport.send(sent)
    assert [data for _, data in proxy.got] == [each.body for each in sent]
    with pytest.raises(TooLargeError, match=r"413 Request Entity Too Large") as caught:
        transport.send([message(1), message(2, body=b"x" * 600)])
    assert caught.value.delivered == 1


def test_a_name_that_is_no_topic_is_rejected_alone(
    proxy: Proxy, connect: Callable[..., Transport]
) -> None:
    """The proxy would accept the message, and Kafka would refuse it later."""
    with pytest.raises(RejectedError, match="is not a topic") as caught:
        connect(proxy).send([message(1), message(2, "k" * 250), message(3)])
    assert caught.value.delivered == 1
    assert proxy.topics == ["fox.sample"]


def test_the_queue_delivers_all_in_order_after_a_failure(
    proxy: Proxy, connect: Callable[..., Transport]
) -> None:
    queue = Queue("backend", OutboxSettings())
    sent = [message(number) for number in range(40)]
    queue.put(sent)
    proxy.script.append(503)
    sender = Sender("backend", queue, connect(proxy))
    while queue.count():
        sender.send_next()
        sender.resume()
    assert [control["key"] for control, _ in proxy.got] == [each.node for each in sent]
    sender.close()


def test_a_probe_delivers_nothing(proxy: Proxy, connect: Callable[..., Transport]) -> None:
    result = connect(proxy).probe(message())
    assert result is not None
    assert result.message == "it answers an empty request with 200 OK: Ok"
    assert proxy.got == []


def test_its_own_certificate_is_trusted_by_ca_file(
    authority: Authority, password: Path, connect: Callable[..., Transport]
) -> None:
    proxy = Proxy(context=authority.context("node"))
    try:
        keys = {"password_file": str(password), "ca_file": authority.certificate}
        connect(proxy, "kproxs", **keys).send([message()])
        assert proxy.topics == ["fox.sample"]
        with pytest.raises(RetryableError, match="certificate can't be trusted"):
            connect(proxy, "kproxs").send([message()])
    finally:
        proxy.stop()


def test_an_http_proxy_gets_the_whole_url(proxy: Proxy, connect: Callable[..., Transport]) -> None:
    url = "kprox://kafka.example.org:8090/kprox"
    connect(proxy, url=url, proxy=f"http://{proxy.place}").send([message()])
    assert proxy.requests[0].path == "http://kafka.example.org:8090/kprox"
    assert proxy.topics == ["fox.sample"]


def test_a_password_file_that_is_away_is_read_again(
    proxy: Proxy, password: Path, connect: Callable[..., Transport]
) -> None:
    transport = connect(proxy, password_file=str(password))
    password.unlink()
    with pytest.raises(RetryableError, match="password"):
        transport.send([message()])
    password.write_text(PASSWORD)
    password.chmod(0o600)
    transport.send([message()])
    assert proxy.got[0][0]["sasl-password"] == PASSWORD


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"gzip": True}, "gzip: the proxy refuses compressed requests"),
        ({"token-file": "/etc/token"}, "token-file: the proxy takes"),
        ({"url": "kprox:"}, "expected"),
        ({"url": "kprox://user:secret@h"}, "user"),
    ],
)
def test_keys_that_the_proxy_does_not_take(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_sink({"url": "kprox://127.0.0.1:8090"} | keys, "backend", "test")


@given(st.lists(st.tuples(st.binary(), st.sampled_from(["sample", "job"])), max_size=5))
def test_any_data_is_framed(bodies: list[tuple[bytes, str]]) -> None:
    """The size counts bytes, so data may contain newlines and braces."""
    transport = KproxTransport(KproxSettings(url="kprox://127.0.0.1"))
    sent = [Message("fox", "n", kind, "sonar", 0.0, b"{" + data, "") for data, kind in bodies]
    payload = b"".join(post.body for post in transport._group(sent, 0, len(sent)))
    assert [(control["topic"], data) for control, data in read_frames(payload)] == [
        (each.topic, each.body) for each in sent
    ]
