"""Requests, answers and senders of messages. A message has several lines with times in ns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.controls.policy import RequestSender
from ccagent.errors import EncodingError
from ccagent.log import logger
from ccagent.records.line_protocol import Line, LineError, decode_lines
from ccagent.records.points import encode_string, encode_tags, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.controls.responder import Method

MOST_LINES = 4096
"""Maximum number of answered lines per message."""

_DIGITS = 19
"""Number of digits of a time in nanoseconds, from 2001 to 2286."""
_LONGEST_KNOWN = 512
_MOST_KNOWN = 512
_REMEMBERED = 1024
_INFO = "nats-request-info"


class _RequestInfo(msgspec.Struct):
    """The NATS server's description of a sender in another account (Nats-Request-Info)."""

    acc: str = ""
    user: str = ""


class Incoming(NamedTuple):
    """One request: a line, the subject of its answer (empty: none), the sender, and the method.

    refusal: the reason for a refusal independent of the content.
    """

    line: Line
    reply: str
    sender: RequestSender
    only: Method = ""
    refusal: str = ""


class LineReader:
    """Parses requests, with a cache: clients repeat the same lines with another time."""

    def __init__(self) -> None:
        self._known: dict[bytes, Line] = {}

    def read(self, body: bytes) -> list[Line]:
        """Return the requests of a message, as `read_lines` does."""
        start, _, end = body.rpartition(b" ")
        time = end.rstrip(b"\n")
        if len(time) == _DIGITS and time.isdigit():
            known = self._known.get(start)
            if known is not None:
                return [Line(known.measurement, known.tags, known.field, known.value, int(time))]
        lines = read_lines(body)
        if len(lines) == 1 and len(start) <= _LONGEST_KNOWN and b"\n" not in start:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[start] = lines[0]
        return lines


def read_lines(body: bytes) -> list[Line]:
    """Return the requests of a message. Lines that are invalid or have no time are skipped."""

    def complain(error: LineError) -> None:
        logger.debug("request: %s", error)

    lines: list[Line] = []
    text = body.decode("utf-8", "replace")
    for line in decode_lines(text, "ns", complain=complain):
        if line.time is None:
            continue  # cc-node-controller does not answer it either
        if len(lines) == MOST_LINES:
            logger.warning("request: more than %d lines, the rest is not answered", MOST_LINES)
            break
        lines.append(line)
    return lines


def method_of_subject(subject: str) -> Method:
    """Return the method of a subject of the specification; "" for both methods."""
    last = subject.rpartition(".")[2]
    return "GET" if last == "get" else "PUT" if last == "put" else ""


def nats_sender(
    subject: str, headers: Mapping[str, str], key: str, *, trusts_info: bool
) -> RequestSender:
    """Return the sender of a message, as proved by the server and a signature."""
    if not headers:
        return RequestSender(f"NATS subject {subject}")
    identities: set[str] = set()
    names: list[str] = []
    if key:
        identities.add(f"key:{key}")
        names.append(f"key {key}")
    if trusts_info and _INFO in headers:
        try:
            info = msgspec.json.decode(headers[_INFO], type=_RequestInfo)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            info = _RequestInfo()
        for kind, name in (("account", info.acc), ("user", info.user)):
            if name:
                identities.add(f"{kind}:{name}")
                names.append(f"{kind} {ascii(name)[1:-1][:100]}")
    return RequestSender(", ".join(names) or f"NATS subject {subject}", frozenset(identities))


def encode_line(line: Line) -> str:
    """Return a line with a text. Raise EncodingError for an invalid name, tag or text.

    Names of controls may contain dots, unlike names of metrics.
    """
    start = _start(line.measurement, tuple(line.tags.items()))
    if not isinstance(line.value, str) or not line.value.isprintable():
        raise EncodingError(f"{line.measurement}: {line.field} can't be {shorten(line.value)}")
    return f"{start} {line.field}={encode_string(line.value)} {line.time}"


@lru_cache(_REMEMBERED)
def _start(name: str, tags: tuple[tuple[str, str], ...]) -> str:
    """Return the text of name and tags, cached because requests repeat them."""
    if not name or not name.isprintable() or name.endswith("\\") or name.startswith("#"):
        raise EncodingError(f"name {shorten(name)}: empty, a comment, or with control characters")
    return name.replace(",", "\\,").replace(" ", "\\ ") + encode_tags(dict(tags))
