"""HTTP/1.x as far as scrapes need it: request heads, content negotiation, responses."""

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
"""Seconds subtracted from the client's scrape timeout, for the transfer."""
_LONGEST = 120.0
"""The maximum in seconds: a client must not occupy a thread without limit."""


class Request(NamedTuple):
    """The head of a request. Header names are in lower case. peer: the client's address."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keeps_alive: bool
    peer: str = ""


class MalformedRequestError(ValueError):
    """A request that is malformed or not supported. status: of the response."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


class ExporterAnswer(NamedTuple):
    """A response before encoding."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def parse_request(head: bytes) -> Request:
    """Parse a head without its final empty line. Raise MalformedRequestError if it is invalid."""
    lines = head.decode("latin-1").split("\r\n")
    found = _LINE.fullmatch(lines[0])
    if found is None:
        raise MalformedRequestError("not an HTTP/1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        # A regular expression with two runs of spaces needs seconds for a head full of spaces:
        # the line is not matched as a whole.
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or _FORBIDDEN.search(value):
            raise MalformedRequestError("a header is malformed")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise MalformedRequestError("no request body allowed", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    # A proxy may send the whole URL (RFC 9112, 3.2.2).
    path, _, query = _AUTHORITY.sub("", found[2], count=1).partition("?")
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keeps = "close" not in options and (found[3] == "1" or "keep-alive" in options)
    return Request(found[1], path or "/", query, headers, keeps)


def choose_format(accept: str) -> str:
    """Return the Content-Type that the header Accept prefers; the text format if none matches.

    Of types with equal quality the first is chosen.
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
    """Return whether the header Accept-Encoding permits gzip, by name or by `*`."""
    qualities: dict[str, float] = {}
    for item in accept_encoding.split(",")[:64]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        qualities[name] = _number(_parameters(parameters).get("q", "1"), 0.0)
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def scrape_seconds(timeout: str, default: float) -> float:
    """Return the time limit of a scrape in seconds.

    timeout: the header X-Prometheus-Scrape-Timeout-Seconds. default: if that is empty or invalid.
    """
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
    """Return the response as bytes."""
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
    """Return a text response of one line."""
    return ExporterAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)
