"""Parser of the NATS protocol: bytes of a server to messages, within limits.

Source: docs.nats.io, "NATS Client Protocol": lines end with CR LF; MSG and HMSG have a payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 1024 * 1024
"""Maximum bytes of a line or message. A larger message is skipped."""

_HEADER_START = b"NATS/1.0"


class Received(NamedTuple):
    """A message of a subscription. headers: the last value per name; names in lower case."""

    subject: str
    reply: str
    body: bytes
    headers: dict[str, str]


class ServerLine(NamedTuple):
    """A line that is not a message: INFO, PING, PONG, +OK or -ERR, with its argument."""

    operation: str
    argument: bytes


class NatsParser:
    """Parses bytes in pieces of any size. Raise UnparsableError for invalid data."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._to_skip = 0

    def feed(self, data: bytes) -> Iterator[Received | ServerLine]:
        """Yield the messages and lines that the bytes complete."""
        if self._to_skip:
            skipped = min(self._to_skip, len(data))
            self._to_skip -= skipped
            data = data[skipped:]
        self._buffer += data
        while (found := self._next()) is not None:
            yield found
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        if len(self._buffer) > LARGEST + 8192:
            raise UnparsableError(f"it sends more than {LARGEST} bytes at once: is it NATS?")

    def _next(self) -> Received | ServerLine | None:
        begin = self._position
        end = self._buffer.find(b"\r\n", begin)
        if end < 0:
            return None
        line = bytes(self._buffer[begin:end])
        operation, _, argument = line.partition(b" ")
        word = operation.upper()
        if word not in {b"MSG", b"HMSG"}:
            self._position = end + 2
            return ServerLine(word.decode("ascii", "replace"), argument)
        fields = argument.split()
        header_size, size = _sizes(word, fields)
        payload = end + 2
        if size > LARGEST:
            # A huge message of one sender must not end the connection for all.
            logger.warning(
                "request: a message of %d bytes is skipped", size, key="controls large message"
            )
            rest = payload + size + 2 - len(self._buffer)
            self._to_skip = max(0, rest)
            self._position = payload + size + 2 if rest <= 0 else len(self._buffer)
            return self._next()
        if len(self._buffer) < payload + size + 2:
            return None
        content = bytes(self._buffer[payload : payload + size])
        self._position = payload + size + 2
        reply = fields[2] if len(fields) == (5 if word == b"HMSG" else 4) else b""
        return Received(
            fields[0].decode("utf-8", "replace"),
            reply.decode("utf-8", "replace"),
            content[header_size:],
            parse_headers(content[:header_size]) if header_size else {},
        )


def _sizes(word: bytes, fields: list[bytes]) -> tuple[int, int]:
    """Return the bytes of the headers, and of the whole payload. Raise UnparsableError."""
    counts = {b"MSG": (3, 4), b"HMSG": (4, 5)}[word]
    numbers = fields[-2:] if word == b"HMSG" else [b"0", *fields[-1:]]
    if len(fields) not in counts or not all(n.isdigit() and len(n) < 11 for n in numbers):
        raise UnparsableError(f"it does not speak NATS: {word!r} with {len(fields)} fields")
    header_size, size = map(int, numbers)
    if header_size > size:
        raise UnparsableError(f"a message of {size} bytes with headers of {header_size}")
    return header_size, size


def parse_headers(content: bytes) -> dict[str, str]:
    """Parse headers. Invalid lines are omitted. A status (503: no responders) is `status`."""
    first, *lines = content.split(b"\r\n")
    status = first.removeprefix(_HEADER_START).strip()[:3]
    found = {"status": status.decode("ascii")} if status.isdigit() else dict[str, str]()
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            key = name.strip().decode("ascii", "replace").lower()
            found[key] = value.strip().decode("utf-8", "replace")
    return found
