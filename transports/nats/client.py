"""nats-py's client: made to insist on TLS, to read within limits, and kept off stderr."""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING, Any

import nats.aio.client
import nats.errors
from nats.protocol.parser import Parser

from ccagent.log import logger
from ccagent.transports.peer_text import peer_text

if TYPE_CHECKING:
    from collections.abc import Iterable

THREADS = "nats "
"""What the names of our threads begin with."""

_LARGEST_READ = 1024 * 1024
"""Bytes of one message or line from a server; what we ask for has hundreds."""

_WANTS_CERTIFICATE = "it wants a certificate of ours (certificate-file, key-file)"
_EXPLAINED = {
    "authorization violation": "the login is refused",
    "authentication timeout": "the login took too long",
    "authentication expired": "the login has expired",
    "empty response from server": "it does not speak NATS",
    "json parse error": "it does not speak NATS",
    "separator is": "it does not speak NATS: its first line is too long",
    "permissions violation for subscription": (
        "we may not subscribe to _INBOX.>, where acknowledgements arrive"
    ),
    "certificate_required": _WANTS_CERTIFICATE,
    "certificate required": _WANTS_CERTIFICATE,
    "alert unknown ca": "it does not trust our certificate",
    "alert bad certificate": "it does not trust our certificate",
}
_HARMLESS = frozenset({
    "maximum connections exceeded", "maximum account active connections exceeded",
    "maximum payload violation", "maximum messages exceeded", "maximum bytes exceeded",
    "maximum messages per subject exceeded", "message size exceeds maximum allowed",
    "insufficient resources", "server is shutting down", "stale connection",
})  # fmt: skip
"""What servers say that can't hold a secret."""

_DUE_TO_MESSAGE = ("payload violation", "invalid publish subject", "parser error", "header size")
"""Parts of what servers say when they close a connection for a message."""


class _BoundedParser(Parser):
    """nats-py's parser, which itself takes lines and messages of any size."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._client = client

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        if max(len(self.buf), self.needed) > _LARGEST_READ:
            self._client.excess = f"it sends more than {_LARGEST_READ} bytes at once: is it NATS?"
            raise nats.errors.ProtocolError


class Client(nats.aio.client.Client):
    """A client that never reconnects: it is made for one connection.

    Of nats-py's private parts it uses five, the same from 2.12 to 2.16: `_connect_command`,
    `_process_info`, `_ps`, `_server_info` and `_transport._io_writer`.
    """

    encrypted = False
    excess = ""
    """Why the connection was ended, if the server sent too much."""

    can_insist = hasattr(nats.aio.client.Client, "_connect_command")

    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)

    async def _process_info(self, *_: Any, **_more: Any) -> None:
        """Forget the other servers that a server names: they would be kept, however many."""

    def _connect_command(self) -> bytes:
        # The library leaves it to the server whether there is TLS; here the login would leave.
        if self.encrypted and not self._server_info.get("tls_required"):
            raise nats.errors.Error("it offers no TLS")
        return super()._connect_command()

    def abort(self) -> None:
        """Drop the connection without waiting for anything."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


def explained(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return in half a sentence what went wrong with a connection, without our secrets."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate can't be trusted: {error.verify_message}"
        case _ if is_lost(error):
            return "the connection is lost"
        case OSError(errno=int(number)) if number and not isinstance(error, ssl.SSLError):
            return os.strerror(number)
        case MemoryError():
            return "there is no memory left"
        case _:
            text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    for known, meaning in _EXPLAINED.items():
        if known in text.lower():
            return meaning
    if not isinstance(error, OSError | nats.errors.Error):
        return f"it does not speak NATS ({type(error).__name__})"
    return shown(text, secrets)


def may_be_due_to_message(error: BaseException) -> bool:
    """Return whether a server may have ended a connection because of what was sent last."""
    if type(error) is nats.errors.StaleConnectionError:
        return False  # not so UnexpectedEOF, which is derived from it
    text = str(error).lower()
    return is_lost(error) or any(part in text for part in _DUE_TO_MESSAGE)


def is_lost(error: BaseException) -> bool:
    """Return whether all that is known of an error is that the connection is gone."""
    return isinstance(
        error,
        (
            BrokenPipeError,
            ConnectionAbortedError,
            ConnectionResetError,
            ssl.SSLEOFError,
            nats.errors.ConnectionClosedError,
            nats.errors.StaleConnectionError,
            nats.errors.UnexpectedEOF,
        ),
    )


def shown(text: str, secrets: Iterable[str] = (), own: Iterable[str] = ()) -> str:
    """Return what a server said, as far as it can't hold a secret."""
    return text if text.lower() in _HARMLESS else peer_text(text, secrets, own)


def _forward(record: logging.LogRecord) -> None:
    """Log the first line of a record: the others, and errors, may hold what a server said."""
    logger.library().getChild("nats").debug("%s", record.getMessage().partition("\n")[0])


class _Forward(logging.Handler):
    """Takes nats-py's own log to ours; everything in it comes to us as an error as well."""

    def emit(self, record: logging.LogRecord) -> None:
        _forward(record)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether asyncio logs a record for others."""
    if not (record.threadName or "").startswith(THREADS):
        return True
    _forward(record)
    return False


_library = logging.getLogger("nats")
_library.addHandler(_Forward())
_library.propagate = False
logging.getLogger("asyncio").addFilter(_is_of_others)
