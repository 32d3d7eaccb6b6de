"""Requests in messages, and who sent them: several lines each, over NATS or a local socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.controls.policy import Sender
from ccagent.log import logger
from ccagent.records.line_protocol.decoding import decode_lines
from ccagent.records.line_protocol.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.controls.responder import Method
    from ccagent.records.line_protocol.lines import Line, LineError

MOST_LINES = 4096
"""Lines of one message that are answered."""

_INFO = "nats-request-info"


class _RequestInfo(msgspec.Struct):
    """What a NATS server says of a sender in another account (Nats-Request-Info)."""

    acc: str = ""
    user: str = ""


class Incoming(NamedTuple):
    """One request: a line, where its answer goes (empty: nowhere), who asks, and by which method.

    refusal: why it is refused, whatever it asks.
    """

    line: Line
    reply: str
    sender: Sender
    only: Method = ""
    refusal: str = ""


def read_lines(body: bytes) -> list[Line]:
    """Read the lines of a message. One that does not parse, or has no time, costs only itself."""

    def complain(error: LineError) -> None:
        logger.debug("request: %s", error)

    found: list[Line] = []
    text = body.decode("utf-8", "replace")
    for line in decode_lines(text, "ns", complain=complain):
        if line.time is None:
            continue  # the reference does not answer it either
        if len(found) == MOST_LINES:
            logger.warning("request: more than %d lines, the rest is not answered", MOST_LINES)
            break
        found.append(line)
    return found


def method_of_subject(subject: str) -> Method:
    """Return the method that a subject of the specification's tree is for, "" for both."""
    last = subject.rpartition(".")[2]
    return "GET" if last == "get" else "PUT" if last == "put" else ""


def nats_sender(subject: str, headers: Mapping[str, str], key: str, *, trusts_info: bool) -> Sender:
    """Return who sent a message, as far as the server and a signature prove it."""
    identities: set[str] = set()
    names: list[str] = []
    if key:
        identities.add(f"key:{key}")
        names.append(f"key {key}")
    if trusts_info and _INFO in headers:
        try:
            info = msgspec.json.decode(headers[_INFO], type=_RequestInfo)
        except msgspec.MsgspecError:
            info = _RequestInfo()
        for kind, name in (("account", info.acc), ("user", info.user)):
            if name:
                identities.add(f"{kind}:{name}")
                names.append(f"{kind} {ascii(name)[1:-1][:100]}")
    return Sender(", ".join(names) or f"NATS subject {subject}", frozenset(identities))


def encode_answer(line: Line) -> bytes:
    """Write an answer. Raises EncodingError for a name or tag that can't be sent back."""
    return encode(line, "ns").encode()
