"""Requests with `Upgrade` are parsed as those without."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.net.request_parser import RequestParser
from tests.support.upgrades import UPGRADES

PLAIN = b"GET /plain HTTP/1.1\r\nX: y\r\n\r\n"


class Requests:
    """The parsed requests: URL, names of header fields, body, and whether the connection stays."""

    def __init__(self) -> None:
        self.found: list[tuple[bytes, list[bytes], bytes, bool]] = []
        self.parser: Any = RequestParser(self)

    def on_message_begin(self) -> None:
        self.url, self.body = b"", b""
        self.names: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert value
        self.names.append(name)

    def on_headers_complete(self) -> None:
        assert self.parser.get_method() in {b"GET", b"POST"}

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        stays = self.parser.should_keep_alive()
        self.found.append((self.url, self.names, self.body, stays))


def parse(*parts: bytes) -> list[tuple[bytes, list[bytes], bytes, bool]]:
    requests = Requests()
    for part in parts:
        requests.parser.feed_data(part)
    return requests.found


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"\r\n", b""),
        (b"Content-Length: 0\r\n\r\n", b""),
        (b"Content-Length: 29\r\n\r\nGET /hidden HTTP/1.1\r\nX: y\r\n\r", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nT: t\r\n\r\n", b"abcd"),
    ],
)  # fmt: skip
def test_the_body_of_an_upgrade_is_a_body(upgrade: bytes, framing: bytes, body: bytes) -> None:
    plain = parse(b"POST /a HTTP/1.1\r\n" + framing, PLAIN)
    request = b"POST /a HTTP/1.1\r\n" + upgrade + framing
    assert body in plain[0][2]
    for parts in ([request + PLAIN], [bytes([one]) for one in request + PLAIN]):
        found = parse(*parts)
        assert [(one[0], one[2], one[3]) for one in found] == [
            (one[0], one[2], one[3]) for one in plain
        ]
        assert found[0][1][:2] == [b"Connection", b"Upgrade"]


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 200))
def test_upgrades_and_others_follow_each_other(kinds: list[bool], size: int) -> None:
    body = b"Content-Length: 3\r\n\r\nabc"
    text = b"".join(
        b"POST /a HTTP/1.1\r\n" + (UPGRADES[0] if is_upgrade else b"") + body
        for is_upgrade in kinds
    )
    found = parse(*(text[begin : begin + size] for begin in range(0, len(text), size)))
    assert [(one[0], one[2]) for one in found] == [(b"/a", b"abc")] * len(kinds)


def test_a_connection_ends_as_without_an_upgrade() -> None:
    for options, version, stays in (
        (b"Upgrade, close", b"1.1", False), (b"close,upgrade", b"1.1", False),
        (b"upgrade", b"1.1", True), (b"upgrade, keep-alive", b"1.0", True),
        (b"upgrade", b"1.0", False),
    ):  # fmt: skip
        text = b"GET /a HTTP/%b\r\nConnection: %b\r\nUpgrade: h2c\r\n\r\n" % (version, options)
        assert parse(text)[0][3] is stays


def test_a_tunnel_is_refused() -> None:
    with pytest.raises(httptools.HttpParserError, match="CONNECT"):
        parse(b"CONNECT host:1 HTTP/1.1\r\nHost: host:1\r\n\r\n" + PLAIN)
