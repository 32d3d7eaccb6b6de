"""HTTP/1.x as far as a scrape needs it: heads of requests, choice of format, answers."""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import NamedTuple

LARGEST_HEAD = 16 * 1024
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_VERSIONS = frozenset({"", "1.0.0", "0.0.1"})
_TEXT_VERSIONS = frozenset({"", "0.0.4"})
_LINE = re.compile(r"([A-Z]{1,16}) ([\x21-\x7e]{1,8192}) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORBIDDEN = re.compile(r"[\0\r\n]")
_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_OFFSET = 0.5
"""Seconds of a scrape's timeout that are left for its way to the server."""
_LONGEST = 120.0
"""Seconds at most: a client must not occupy a thread for as long as it likes."""


class Request(NamedTuple):
    """The head of a request; names of headers in lower case. peer: the address of the client."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keeps_alive: bool
    peer: str = ""


class MalformedRequestError(ValueError):
    """A request that is no HTTP, or asks for what can't be had. status: of the answer."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


class ExporterAnswer(NamedTuple):
    """An answer before it is encoded."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def parse_request(head: bytes) -> Request:
    """Parse a head without the empty line that ends it. Raises MalformedRequestError."""
    lines = head.decode("latin-1").split("\r\n")
    found = _LINE.fullmatch(lines[0])
    if found is None:
        raise MalformedRequestError("no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        # No regular expression for the whole line: one with two runs of spaces needs seconds for a
        # head that is full of them.
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or _FORBIDDEN.search(value):
            raise MalformedRequestError("a header is malformed")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise MalformedRequestError("no body is taken", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    # A proxy may send the whole URL (RFC 9112, 3.2.2).
    path, _, query = _AUTHORITY.sub("", found[2], count=1).partition("?")
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keeps = "close" not in options and (found[3] == "1" or "keep-alive" in options)
    return Request(found[1], path or "/", query, headers, keeps)


def choose_format(accept: str) -> str:
    """Return the Content-Type that a header Accept prefers: OpenMetrics, or text where none fits.

    Of the same quality the first one counts.
    """
    best, chosen = 0.0, TEXT
    for item in accept.split(",")[:64]:
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        values = _parameters(parameters)
        version = values.get("version", "").strip('"')
        if kind == "application/openmetrics-text" and version in _OPENMETRICS_VERSIONS:
            form = OPENMETRICS.replace("1.0.0", version or "1.0.0")
        elif kind in {"text/plain", "text/*", "*/*"} and version in _TEXT_VERSIONS:
            form = TEXT
        else:
            continue
        quality = _number(values.get("q", "1"), 0.0)
        if quality > best:
            best, chosen = quality, form
    return chosen


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a header Accept-Encoding permits gzip; `*` is what it does not name."""
    qualities: dict[str, float] = {}
    for item in accept_encoding.split(",")[:64]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        qualities[name] = _number(_parameters(parameters).get("q", "1"), 0.0)
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def scrape_seconds(timeout: str, default: float) -> float:
    """Return the time limit of a scrape by its header X-Prometheus-Scrape-Timeout-Seconds."""
    seconds = min(_number(timeout, 0.0), max(_LONGEST, default))
    if seconds <= 0:
        return default
    return seconds - _OFFSET if seconds > 2 * _OFFSET else seconds / 2


def _parameters(parts: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def _number(text: str, default: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return default
    return value if math.isfinite(value) else default


def encode_answer(answer: ExporterAnswer, *, keeps_alive: bool, with_body: bool = True) -> bytes:
    """Return the bytes of an answer."""
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
        *(f"{name}: {value}" for name, value in answer.headers),
        "\r\n",
    ]
    head = "\r\n".join(lines).encode("latin-1", "replace")
    return head + answer.body if with_body else head


def text_answer(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> ExporterAnswer:
    """Return an answer of one line of text."""
    return ExporterAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)
