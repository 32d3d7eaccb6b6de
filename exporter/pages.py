"""The responses of the exporter (metrics, a landing page, errors), and content negotiation."""

from __future__ import annotations

import html
import math
import zlib
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

from ccagent import __version__
from ccagent.exporter.access import BusyError
from ccagent.exporter.exposition import join_openmetrics, join_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ccagent.exporter.access import PasswordFile
    from ccagent.exporter.exposition import Block
    from ccagent.exporter.settings import ExporterSettings

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_VERSIONS = frozenset({"", "1.0.0", "0.0.1"})
_TEXT_VERSIONS = frozenset({"", "0.0.4"})
_OFFSET = 0.5
"""Seconds subtracted from the client's scrape timeout, for the transfer."""
_LONGEST = 120.0
"""The maximum in seconds: a client must not occupy a thread without limit."""
_GZIP = 31
_LEVEL = 1
_MOST_FIELDS = 200
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>ccagent</title></head>
<body>
<h1>ccagent {version}</h1>
<p>Metrics of this node for Prometheus: <a href="{path}">{path}</a></p>
<p>Collectors, for <code>?collect[]=NAME</code> or <code>?exclude[]=NAME</code>: {names}</p>
</body>
</html>
"""
_CHALLENGE = ("WWW-Authenticate", 'Basic realm="ccagent", charset="UTF-8"')


class Request(NamedTuple):
    """The head of a request. Header names are in lower case. peer: the client's address."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    peer: str = ""


class ExporterAnswer(NamedTuple):
    """A response before encoding."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def text_answer(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> ExporterAnswer:
    """Return a text response of one line."""
    return ExporterAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


class ExporterPages:
    """Builder of responses.

    scrape: called with the time limit in seconds, collectors to use and collectors to exclude.
    """

    def __init__(
        self,
        settings: ExporterSettings,
        scrape: Callable[[float, Collection[str], Collection[str]], list[Block]],
        names: list[str],
        passwords: PasswordFile | None = None,
    ) -> None:
        self._settings = settings
        self._scrape = scrape
        self._names = names
        self._passwords = passwords

    def answer(self, request: Request) -> ExporterAnswer:
        """Return the response to a request: status 4xx if the request is forbidden or invalid."""
        if self._passwords is not None:
            try:
                login = request.headers.get("authorization", "")
                if not self._passwords.accepts(login, request.peer):
                    return text_answer(
                        HTTPStatus.UNAUTHORIZED, "user and password required", _CHALLENGE
                    )
            except BusyError:
                return text_answer(
                    HTTPStatus.TOO_MANY_REQUESTS, "too many wrong passwords", ("Retry-After", "5")
                )
        if request.method not in {"GET", "HEAD"}:
            return text_answer(
                HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", ("Allow", "GET, HEAD")
            )
        if request.path == self._settings.path:
            return self._metrics(request)
        if request.path == "/":
            return self._landing()
        return text_answer(HTTPStatus.NOT_FOUND, f"not found; metrics are at {self._settings.path}")

    def _metrics(self, request: Request) -> ExporterAnswer:
        try:
            fields = parse_qsl(request.query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return text_answer(HTTPStatus.BAD_REQUEST, "too many parameters")
        include = [value for name, value in fields if name == "collect[]"]
        exclude = [value for name, value in fields if name == "exclude[]"]
        if include and exclude:
            return text_answer(HTTPStatus.BAD_REQUEST, "collect[] and exclude[] exclude each other")
        known = set(self._names)
        for name in (*include, *exclude):
            if name not in known:
                shown = name[:80] if name.isprintable() else repr(name[:80])
                return text_answer(HTTPStatus.BAD_REQUEST, f"unknown collector {shown}")
        timeout = request.headers.get("x-prometheus-scrape-timeout-seconds", "")
        limit = self._settings.time_limit.seconds
        blocks = self._scrape(scrape_seconds(timeout, limit), include, exclude)
        content_type = choose_format(request.headers.get("accept", ""))
        body = join_text(blocks) if content_type == TEXT else join_openmetrics(blocks)
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            body = packer.compress(body) + packer.flush()
            headers = (*headers, ("Content-Encoding", "gzip"))
        return ExporterAnswer(HTTPStatus.OK, content_type, body, headers)

    def _landing(self) -> ExporterAnswer:
        page = _PAGE.format(
            version=html.escape(__version__),
            path=html.escape(self._settings.path),
            names=html.escape(", ".join(self._names)),
        )
        policy = ("Content-Security-Policy", "default-src 'none'")
        return ExporterAnswer(HTTPStatus.OK, "text/html; charset=utf-8", page.encode(), (policy,))


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
        quality = _number(values.get("q", "1"))
        if quality > best:
            best, chosen = quality, form
    return chosen


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the header Accept-Encoding permits gzip, by name or by `*`."""
    qualities: dict[str, float] = {}
    for item in accept_encoding.split(",")[:64]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        qualities[name] = _number(_parameters(parameters).get("q", "1"))
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def scrape_seconds(timeout: str, default: float) -> float:
    """Return the time limit of a scrape in seconds.

    timeout: the header X-Prometheus-Scrape-Timeout-Seconds. default: if that is empty or invalid.
    """
    seconds = min(_number(timeout), max(_LONGEST, default))
    if seconds <= 0:
        return default
    return seconds - _OFFSET if seconds > 2 * _OFFSET else seconds / 2


def _parameters(parts: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def _number(text: str) -> float:
    """Return a finite number; 0 for any other text."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
