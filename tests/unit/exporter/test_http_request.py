"""Requests as Prometheus and others send them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.exporter.http_request import (
    OPENMETRICS,
    TEXT,
    MalformedRequestError,
    accepts_gzip,
    choose_format,
    parse_request,
    scrape_seconds,
)

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("application/vnd.google.protobuf;proto=x;encoding=delimited,text/plain;q=0.3", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;q=0,text/plain;q=0.1", TEXT),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.9", TEXT),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;version=0.0.1", OPENMETRICS.replace("1.0.0", "0.0.1")),
        (";;;q=nan,,", TEXT),
    ],
)
def test_the_format_that_a_client_prefers(accept: str, chosen: str) -> None:
    assert choose_format(accept) == chosen


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0, gzip", True),
    ],
)
def test_gzip(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("10", 9.5),
        ("0.8", 0.4),
        ("", 7.0),
        ("-3", 7.0),
        ("nan", 7.0),
        ("inf", 7.0),
        ("x", 7.0),
        ("1e300", 119.5),
    ],
)
def test_the_time_limit_leaves_half_a_second_for_the_way(header: str, seconds: float) -> None:
    assert scrape_seconds(header, 7.0) == seconds


def test_a_head() -> None:
    request = parse_request(
        b"GET /metrics?collect[]=cpu HTTP/1.1\r\nHost: a:1\r\nACCEPT: b\r\nAccept:c"
    )
    assert (request.method, request.path, request.query) == ("GET", "/metrics", "collect[]=cpu")
    assert request.headers == {"host": "a:1", "accept": "b, c"}
    assert request.keeps_alive
    assert not parse_request(b"GET / HTTP/1.0").keeps_alive
    assert not parse_request(b"GET / HTTP/1.1\r\nConnection: Close").keeps_alive
    assert not parse_request(b"GET / HTTP/1.1\r\nConnection: TE, close").keeps_alive
    assert parse_request(b"GET / HTTP/1.0\r\nConnection: TE, keep-alive").keeps_alive


def test_a_whole_url_as_a_proxy_sends_it() -> None:
    request = parse_request(b"GET http://node:9500/metrics?a=b HTTP/1.1")
    assert (request.path, request.query) == ("/metrics", "a=b")
    assert parse_request(b"GET http://node:9500 HTTP/1.1").path == "/"


def test_a_head_full_of_spaces_takes_no_time() -> None:
    """One that is parsed in quadratic time would take minutes."""
    spaces = " " * 500_000
    request = parse_request(f"GET / HTTP/1.1\r\nA:b{spaces}c{spaces}".encode())
    assert request.headers["a"] == f"b{spaces}c"


@pytest.mark.parametrize(
    "head",
    [
        b"", b"GET /", b"get / HTTP/1.1", b"GET / HTTP/2.0", b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon", b"GET / HTTP/1.1\r\n: x", b"GET / HTTP/1.1\r\n a: x",
        b"POST / HTTP/1.1\r\nContent-Length: 3", b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)  # fmt: skip
def test_what_is_no_request(head: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_request(head)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(head: bytes) -> None:
    with contextlib.suppress(MalformedRequestError):
        parse_request(head)


@given(st.text(max_size=60))
def test_no_header_raises(text: str) -> None:
    choose_format(text)
    accepts_gzip(text)
    assert scrape_seconds(text, 1.0) > 0
