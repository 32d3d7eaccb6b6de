"""nats-py's client: told to insist on TLS, cut off when it hangs, and kept off stderr."""

from __future__ import annotations

import logging
import os
import ssl

import nats.aio.client
import nats.errors

from ccagent.log import logger, printable

THREADS = "nats "
"""What the names of our threads begin with."""

_WANTS_CERTIFICATE = "it wants a certificate of ours (certificate-file, key-file)"
_EXPLAINED = {
    "authorization violation": "the login is refused",
    "authentication timeout": "the login took too long",
    "authentication expired": "the login has expired",
    "empty response from server": "it does not speak NATS",
    "json parse error": "it does not speak NATS",
    "permissions violation for subscription": (
        "we may not subscribe to _INBOX.>, where acknowledgements arrive"
    ),
    "certificate_required": _WANTS_CERTIFICATE,
    "certificate required": _WANTS_CERTIFICATE,
    "alert unknown ca": "it does not trust our certificate",
    "alert bad certificate": "it does not trust our certificate",
}


class Client(nats.aio.client.Client):
    """A client that never reconnects: it is made for one connection.

    Of nats-py's private parts it uses three, the same from 2.12 to 2.16: `_connect_command`,
    `_server_info` and `_transport._io_writer`.
    """

    encrypted = False
    can_insist = hasattr(nats.aio.client.Client, "_connect_command")

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


def explained(error: BaseException) -> str:
    """Say in half a sentence what went wrong with a connection."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate can't be trusted: {error.verify_message}"
        case _ if is_lost(error):
            return "the connection is lost"
        case OSError(errno=int(number)) if number and not isinstance(error, ssl.SSLError):
            return os.strerror(number)
        case _:
            text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    for known, meaning in _EXPLAINED.items():
        if known in text.lower():
            return meaning
    return text


def is_lost(error: BaseException) -> bool:
    """Tell whether this is all that is known of an error: the connection is gone."""
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


def shown(text: str) -> str:
    """Make a line for the log of what a server said."""
    return printable(text)[:200]


def _forward(record: logging.LogRecord) -> None:
    logger.getChild("nats").debug("%s", record.getMessage(), exc_info=record.exc_info)


class _Forward(logging.Handler):
    """Takes nats-py's own log to ours; everything in it comes to us as an error as well."""

    def emit(self, record: logging.LogRecord) -> None:
        _forward(record)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Let pass what asyncio says to others."""
    if not (record.threadName or "").startswith(THREADS):
        return True
    _forward(record)
    return False


_library = logging.getLogger("nats")
_library.addHandler(_Forward())
_library.propagate = False
logging.getLogger("asyncio").addFilter(_is_of_others)
