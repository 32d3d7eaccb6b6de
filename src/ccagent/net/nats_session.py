"""The session with a NATS server: nats-py with TLS enforced, limits, and errors as phrases.

Sinks, stores and controls use it. It ends with its first failure and its user opens another one:
nats-py must not reconnect, because it would buffer messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from typing import TYPE_CHECKING, Any

import nats.aio.client
import nats.aio.msg
import nats.errors
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger
from ccagent.net.error_texts import explain_network_error, explain_tls_alert, hide_secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from ccagent.net.nats_login import NatsOptions
    from ccagent.net.urls import Server

NatsMessage = nats.aio.msg.Msg
NatsError = nats.errors.Error
PayloadError = nats.errors.MaxPayloadError

THREADS = "nats "
"""Prefix of the names of threads of sessions."""

_LARGEST_READ = 1024 * 1024
"""Maximum bytes of one message or line from a server. Expected ones have hundreds."""

_LARGEST_MESSAGE = 64 * _LARGEST_READ
"""Maximum of `max_payload` in nats-server."""

GRACE = 1.0
"""Maximum seconds for the end of a healthy session."""

_LOOK = 0.2
"""Seconds between checks that a client still works."""

_PING_EVERY = 60
"""Seconds between two PINGs. An unanswered one ends the session."""

_WAITING_MESSAGES, _WAITING_BYTES = 1 << 16, 8 << 20
"""Maximum number and size of messages that a subscription has not processed."""

_LINE_END = b"\r\n"

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
    """A parser with a size limit that survives what other clients send.

    nats-py's parser accepts lines and messages of any size. A subject that is not UTF-8 ends it.
    """

    def __init__(self, client: _Client) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._client = client
        self._to_skip = 0

    async def parse(self, data: bytes = b"") -> None:
        skipped = min(self._to_skip, len(data))
        self._to_skip -= skipped
        await self._parse(data[skipped:])
        # A large message of one sender must not end the session for all.
        while self.state == AWAITING_MSG_PAYLOAD and _is_large(self.needed):
            logger.warning("nats: a message of %d bytes is skipped", self.needed, key="nats large")
            size = self.needed + len(_LINE_END)
            self._to_skip = max(0, size - len(self.buf))
            del self.buf[:size]
            self.state, self.needed, self.header_needed = AWAITING_CONTROL_LINE, 0, 0
            await self._parse(b"")
        if max(len(self.buf), self.needed) > _LARGEST_READ + len(_LINE_END):
            self._client.excess = f"the server sends more than {_LARGEST_READ} bytes: is it NATS?"
            raise nats.errors.ProtocolError

    async def _parse(self, data: bytes) -> None:
        while True:
            size = len(self.buf) + len(data)
            try:
                await super().parse(data)
            except (UnicodeDecodeError, IndexError):
                # The message is consumed; a line of the server is not.
                if len(self.buf) >= size:
                    raise nats.errors.ProtocolError from None
                logger.warning("nats: a message with a damaged subject or headers is skipped",
                               key="nats damaged")  # fmt: skip
                data = b""
            else:
                return


class _Client(nats.aio.client.Client):
    """A client for one connection, without reconnecting.

    It uses five private members of nats-py, identical from 2.12 to 2.16: `_connect_command`,
    `_process_info`, `_ps`, `_server_info` and `_transport._io_writer`.
    """

    is_encrypted = False
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
        if self.is_encrypted and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS")
        return super()._connect_command()

    def abort(self) -> None:
        """Drop the connection without waiting."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            # The transport of TLS has no protocol any more after the end of the connection.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()


class NatsSession:
    """A connection in the event loop of its user, from its login to its first failure.

    place: the server's name in errors. on_error: gets the session and an error that may leave it
    intact, and returns whether it does.
    """

    def __init__(
        self,
        options: NatsOptions,
        place: str,
        loop: asyncio.AbstractEventLoop,
        on_error: Callable[[NatsSession, Exception], bool],
    ) -> None:
        self.place = place
        self.client = _Client()
        self.is_broken = False
        self.cause: BaseException | None = None
        """The error that ended the session."""
        self._options = options
        self._is_logged_in = False
        self._loop = loop
        self._on_error = on_error
        self._failed: asyncio.Future[Exception] = loop.create_future()

    @property
    def is_open(self) -> bool:
        """False after any failure. Then only `end` may be called."""
        return not self.is_broken and self.client.is_connected

    @property
    def max_payload(self) -> int:
        """Maximum size in bytes of a message with its headers."""
        return self.client.max_payload

    async def open(self, url: str, host: str | None = None) -> None:
        """Connect and log in. Raise RetryableError.

        host: the name in the server's certificate, if it is not that of the URL.
        """
        await self.run_limited(self._connect(url, host))

    async def open_address(self, server: Server, address: str) -> None:
        """Connect to one of a server's addresses, and log in. Raise RetryableError."""
        host = f"[{address}]" if ":" in address else address
        await self.open(f"nats://{host}:{server.port}", server.host)

    async def subscribe(
        self,
        subject: str,
        take: Callable[[NatsMessage], Awaitable[None]],
        *,
        queue: str = "",
        messages: int = _WAITING_MESSAGES,
        size: int = _WAITING_BYTES,
    ) -> None:
        """Call `take` for each message. messages, size: maximum that waits; 0: any number.

        Further messages are dropped, with a SlowConsumerError for `on_error`.
        """
        await self.client.subscribe(  # pyright: ignore[reportUnknownMemberType]
            subject, queue=queue, cb=take, pending_msgs_limit=messages, pending_bytes_limit=size
        )

    async def flush(self, seconds: float = 0.0) -> None:
        """Return when the server has processed all that was sent.

        seconds: time limit, if not that of the options.
        """
        # A flush sends its PING before messages that are pending in the client. Its PONG does
        # not confirm these messages. They are sent before the second PING.
        while True:
            was_empty = self.client.pending_data_size == 0
            await self.client.flush(int(seconds or self._options.seconds) + 1)
            if was_empty:
                return

    async def run_limited(self, coroutine: Coroutine[Any, Any, None], seconds: float = 0.0) -> None:
        """Run a coroutine until it is done. seconds: time limit, if not that of the options.

        Raise RetryableError if the time limit is exceeded or the session has failed.
        """
        seconds = seconds or self._options.seconds
        task = self._loop.create_task(coroutine)
        deadline = self._loop.time() + seconds
        try:
            while not task.done():
                rest = deadline - self._loop.time()
                if rest <= 0:
                    raise TimeoutError  # noqa: TRY301 - explained below like all others
                # Checked periodically: the client may hang in its close before it reports an error.
                watched: set[asyncio.Future[Any]] = {task, self._failed}
                await asyncio.wait(
                    watched, timeout=min(rest, _LOOK), return_when=asyncio.FIRST_COMPLETED
                )
                if not task.done() and (self._failed.done() or self.client.is_closed):
                    raise self._failed.result() if self._failed.done() else ConnectionResetError  # noqa: TRY301
            if task.cancelled():
                raise ConnectionResetError  # noqa: TRY301 - the library has cancelled it
            task.result()
        except ConfigurationError:
            raise
        except asyncio.CancelledError:
            task.cancel()
            self.abort()
            raise
        except Exception as error:  # noqa: BLE001 - raises of the library
            task.cancel()
            reason = self._break(error, seconds)
            raise RetryableError(reason) from None  # the cause may repeat a secret

    async def wait(self, seconds: float) -> None:
        """Wait for at most `seconds`. Raise RetryableError if the session has failed."""
        await asyncio.wait({self._failed}, timeout=seconds)
        if self._failed.done() or not self.is_open:
            error = self._failed.result() if self._failed.done() else ConnectionResetError()
            raise RetryableError(self._break(error, seconds))

    def fail(self, error: Exception) -> None:
        """End the session."""
        if not self._failed.done():
            self._failed.set_result(error)

    def explain(self, error: BaseException, seconds: float = 0.0) -> str:
        """Return the reason for a failure as a phrase without secrets. seconds: the time limit."""
        if isinstance(error, TimeoutError | nats.errors.TimeoutError):
            return explain_network_error(TimeoutError(), seconds or self._options.seconds)
        if isinstance(error, RetryableError):
            return str(error)
        return self.client.excess or _explain_error(error, self._options.login.secrets)

    async def end(self) -> None:
        """Close the connection in any state. Takes a second at most."""
        if self.is_open:
            await asyncio.wait({self._loop.create_task(self.client.close())}, timeout=GRACE)
        self.client.abort()

    def abort(self) -> None:
        """Drop the connection."""
        self.is_broken = True
        # Only this unblocks a client that waits on a full socket.
        self.client.abort()

    def _break(self, error: BaseException, seconds: float) -> str:
        self.cause = error
        self.abort()
        return f"{self.place}: {self.explain(error, seconds)}"

    async def _connect(self, url: str, host: str | None) -> None:
        way = self._options
        self.client.is_encrypted = way.context is not None
        if self.client.is_encrypted and not self.client.can_insist:
            raise nats.errors.Error("this version of nats-py can't insist on TLS")
        try:
            await self.client.connect(
                url,
                name=way.name,
                allow_reconnect=False,
                # `run_limited` has the time limit for the whole login.
                connect_timeout=int(way.seconds) + 1,
                ping_interval=_PING_EVERY,
                max_outstanding_pings=1,
                tls=way.context,
                tls_hostname=host,
                no_echo=True,
                error_cb=self._take_error,
                closed_cb=self._take_end,
                **way.login.options(),
            )
        except (OSError, nats.errors.Error) as error:
            if not is_lost(error):
                raise
        if not self.client.is_connected:
            raise nats.errors.Error(
                "the server closed the connection during the login" + self._hint()
            )
        limit: Any = self.client.max_payload
        if not isinstance(limit, int) or limit < 1:
            raise nats.errors.Error("the server takes messages of 0 bytes only")
        self._is_logged_in = True

    def _hint(self) -> str:
        """Return a likely reason. With TLS 1.3, the refusal of a certificate may not arrive."""
        if self._options.context is None:
            return ""
        if self._options.has_certificate:
            return ": it may not trust the client certificate"
        return ": it may require a client certificate (certificate-file, key-file)"

    async def _take_error(self, error: Exception) -> None:
        # nats-py would try again and again to log in.
        if not self._is_logged_in or not self._on_error(self, error):
            self.fail(error)

    async def _take_end(self) -> None:
        self.fail(self.client.last_error or ConnectionResetError())


def _explain_error(error: BaseException, secrets: Iterable[str]) -> str:
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


def clean_text(text: str, secrets: Iterable[str], own: Iterable[str] = ()) -> str:
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


def _is_large(size: int) -> bool:
    return _LARGEST_READ < size <= _LARGEST_MESSAGE


def log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors of a failed connection's loop, without texts of a server."""
    kind = type(context.get("exception")).__name__
    logger.library().getChild("nats").debug("%s: %s", context.get("message"), kind)


_library = logging.getLogger("nats")
_library.addHandler(_Forward())
_library.propagate = False
logging.getLogger("asyncio").addFilter(_is_of_others)
