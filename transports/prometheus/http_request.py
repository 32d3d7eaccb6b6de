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
_LINE = re.compile(r"([A-Z]{1,16}) ([\x21-\x7e]{1,4096}) HTTP/1\.([01])")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*(.*?)[ \t]*")
_OFFSET = 0.5
"""Seconds of a scrape's timeout that are left for its way to the server."""


class Request(NamedTuple):
    """The head of a request; names of headers in lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keeps_alive: bool


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
        field = _FIELD.fullmatch(line)
        if field is None:
            raise MalformedRequestError("a header is malformed")
        name = field[1].lower()
        headers[name] = f"{headers[name]}, {field[2]}" if name in headers else field[2]
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise MalformedRequestError("no body is taken", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    path, _, query = found[2].partition("?")
    connection = headers.get("connection", "").lower()
    keeps = connection != "close" if found[3] == "1" else connection == "keep-alive"
    return Request(found[1], path, query, headers, keeps)


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
    """Return whether a header Accept-Encoding permits gzip."""
    for item in accept_encoding.split(",")[:64]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        values = _parameters(parameters)
        if name in {"gzip", "*"} and _number(values.get("q", "1"), 0.0) > 0:
            return True
    return False


def scrape_seconds(timeout: str, default: float) -> float:
    """Return the time limit of a scrape by its header X-Prometheus-Scrape-Timeout-Seconds."""
    seconds = _number(timeout, 0.0)
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
