"""A client of nats-py that enforces TLS and limits, and does not log to stderr."""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING, Any

import nats.aio.client
import nats.errors
from nats.protocol.parser import Parser

from ccagent.log import logger
from ccagent.net.network_errors import explain_network_error, explain_tls_alert
from ccagent.net.peer_text import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable

THREADS = "nats "
"""Prefix of the names of connection threads."""

_LARGEST_READ = 1024 * 1024
"""Maximum bytes of one message or line from a server. Expected ones have hundreds."""

_EXPLAINED = {
    "authorization violation": "the login is refused",
    "authentication timeout": "the login took too long",
    "authentication expired": "the login has expired",
    "empty response from server": "the server does not speak NATS",
    "json parse error": "the server does not speak NATS",
    "separator is": "the server does not speak NATS: its first line is too long",
    "permissions violation for subscription": (
        "this user may not subscribe to _INBOX.>, where acknowledgements arrive"
    ),
}
_HARMLESS = frozenset({
    "maximum connections exceeded", "maximum account active connections exceeded",
    "maximum payload violation", "maximum messages exceeded", "maximum bytes exceeded",
    "maximum messages per subject exceeded", "message size exceeds maximum allowed",
    "insufficient resources", "server is shutting down", "stale connection",
})  # fmt: skip
"""Texts of servers that can't contain a secret."""

_DUE_TO_MESSAGE = ("payload violation", "invalid publish subject", "parser error", "header size")
"""Parts of server errors that close a connection because of a message."""


class _BoundedParser(Parser):
    """A parser with a size limit. nats-py's parser accepts lines and messages of any size."""

    def __init__(self, client: NatsClient) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._client = client

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        if max(len(self.buf), self.needed) > _LARGEST_READ:
            self._client.excess = f"the server sends more than {_LARGEST_READ} bytes: is it NATS?"
            raise nats.errors.ProtocolError


class NatsClient(nats.aio.client.Client):
    """A client for one connection, without reconnecting.

    It uses five private members of nats-py, identical from 2.12 to 2.16: `_connect_command`,
    `_process_info`, `_ps`, `_server_info` and `_transport._io_writer`.
    """

    encrypted = False
    excess = ""
    """The reason for the end of the connection, if the server has sent too much."""

    can_insist = hasattr(nats.aio.client.Client, "_connect_command")

    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)

    async def _process_info(self, *_: Any, **_more: Any) -> None:
        """Ignore a server's list of other servers: the library would keep any number of them."""

    def _connect_command(self) -> bytes:
        # Without an offer of TLS by the server, the library sends the login unencrypted.
        if self.encrypted and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS")
        return super()._connect_command()

    def abort(self) -> None:
        """Drop the connection without waiting."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


def explain_error(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the reason for a failed connection as a phrase without secrets."""
    match error:
        case ssl.SSLCertVerificationError() | ConnectionRefusedError():
            return explain_network_error(error, 0)
        case _ if is_lost(error):
            return "the connection is lost"
        case OSError(errno=int(number)) if number and not isinstance(error, ssl.SSLError):
            return os.strerror(number)
        case MemoryError():
            return "no memory is free"
        case _:
            text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    if meaning := explain_tls_alert(text):
        return meaning
    for known, meaning in _EXPLAINED.items():
        if known in text.lower():
            return meaning
    if not isinstance(error, OSError | nats.errors.Error):
        return f"the server does not speak NATS ({type(error).__name__})"
    return clean_text(text, secrets)


def may_be_due_to_message(error: BaseException) -> bool:
    """Return whether the last message may be the cause for the end of a connection."""
    if type(error) is nats.errors.StaleConnectionError:
        return False  # except for UnexpectedEOF, a subclass
    text = str(error).lower()
    return is_lost(error) or any(part in text for part in _DUE_TO_MESSAGE)


def is_lost(error: BaseException) -> bool:
    """Return whether an error only means that the connection was lost."""
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


def clean_text(text: str, secrets: Iterable[str] = (), own: Iterable[str] = ()) -> str:
    """Return a text of a server, unless it may contain a secret."""
    return text if text.lower() in _HARMLESS else hide_secrets(text, secrets, own)


def _forward(record: logging.LogRecord) -> None:
    """Log the first line of a record. Other lines and errors may contain texts of a server."""
    logger.library().getChild("nats").debug("%s", record.getMessage().partition("\n")[0])


class _Forward(logging.Handler):
    """Sends nats-py's log to ccagent's log at level debug. Its errors are also raised."""

    def emit(self, record: logging.LogRecord) -> None:
        _forward(record)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio is from a thread other than a connection's."""
    if not (record.threadName or "").startswith(THREADS):
        return True
    _forward(record)
    return False


_library = logging.getLogger("nats")
_library.addHandler(_Forward())
_library.propagate = False
logging.getLogger("asyncio").addFilter(_is_of_others)
