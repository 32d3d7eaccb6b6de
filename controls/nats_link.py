"""A small NATS client for a service: one socket, no event loop, no thread.

nats-py needs 12 MB of memory before it connects. That is too much for a service that mostly waits,
so this module implements the protocol. Logins, certificates and limits are those of the sinks.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent import PRODUCER, __version__
from ccagent.controls.nats_protocol import NatsParser, Received, ServerLine
from ccagent.errors import ConfigurationError, RetryableError, UnparsableError
from ccagent.net.nats_login import name_server, read_options, split_nats_servers
from ccagent.net.peer_text import hide_secrets

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from ccagent.controls.settings import ControlsSettings
    from ccagent.net.nats_login import NatsLogin, NatsOptions
    from ccagent.net.urls import Server

_CONNECT_WITHIN = 10.0
_SEND_WITHIN = 2.0
_PIECE = 32 * 1024
_MOST_AT_ONCE = 1024 * 1024
_PING_EVERY = 60.0
"""Seconds of silence of the server until a PING is sent."""


class _Info(msgspec.Struct):
    """The used fields of INFO."""

    max_payload: int = 1024 * 1024
    tls_required: bool = False
    headers: bool = False
    nonce: str = ""


def connect(settings: ControlsSettings, subjects: Sequence[str], name: str) -> NatsLink:
    """Connect to the first reachable server, in random order. Raise RetryableError."""
    try:
        servers = split_nats_servers(settings)
        options = read_options(settings, name, _CONNECT_WITHIN)
    except ConfigurationError as error:
        raise RetryableError(str(error)) from error
    errors: dict[str, None] = {}
    for server in sorted(servers, key=lambda _: os.urandom(4)):
        try:
            return NatsLink(options, name_server(settings, server), server, subjects)
        except RetryableError as error:
            errors[str(error)] = None
    raise RetryableError("; ".join(errors))


class NatsLink:
    """A connection, from its login to its first failure. Only one thread at a time may use it."""

    def __init__(
        self, options: NatsOptions, place: str, server: Server, subjects: Sequence[str]
    ) -> None:
        """Connect, log in and subscribe. Raise RetryableError."""
        self.place = place
        self._secrets = options.login.secrets
        self._parser = NatsParser()
        self._received: list[Received] = []
        self._out = bytearray()
        self._last_word = time.monotonic()
        self._is_asked = False
        deadline = time.monotonic() + _CONNECT_WITHIN
        try:
            self._socket: socket.socket = socket.create_connection(
                (server.host, server.port), _CONNECT_WITHIN
            )
        except (OSError, UnicodeError) as error:
            raise RetryableError(f"{self.place}: {_reason(error)}") from error
        try:
            self._log_in(options, server, deadline)
            for number, subject in enumerate(subjects, 1):
                self._out += f"SUB {subject} {number}\r\n".encode()
            self._out += b"PING\r\n"
            self.flush()
            self._await("PONG", deadline)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor for poll."""
        return self._socket.fileno()

    def receive(self) -> list[Received]:
        """Return the received messages. Raise RetryableError when the connection ends."""
        found, self._received = self._received, []
        for item in self._read():
            if isinstance(item, Received):
                found.append(item)
            else:
                self._handle(item)
        if self._out:
            self.flush()
        return found

    def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None,
                reply: str = "") -> None:  # fmt: skip
        """Queue a message. `flush` sends it.

        Raise UnparsableError if it is too large for the server, or if the subject is invalid.
        """
        if not subject or not subject.isprintable() or " " in subject:
            raise UnparsableError("a subject for the answer that is none")
        start = f"{subject} {reply}".strip()
        if headers:
            head = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
            size = len(head) + len(body)
            line = f"HPUB {start} {len(head)} {size}\r\n{head}"
        else:
            size = len(body)
            line = f"PUB {start} {size}\r\n"
        if size > self.max_payload:
            raise UnparsableError(
                f"the answer has {size} bytes, more than the server takes ({self.max_payload})"
            )
        self._out += line.encode()
        self._out += body
        self._out += b"\r\n"

    def flush(self) -> None:
        """Send the queued messages. Raise RetryableError if the connection fails."""
        view = memoryview(bytes(self._out))
        self._out.clear()
        try:
            view = view[self._socket.send(view) :]
        except OSError as error:
            if not _would_block(error):
                raise RetryableError(f"{self.place}: {_reason(error)}") from error
        if view:
            self._flush_rest(view)

    def _flush_rest(self, view: memoryview) -> None:
        deadline = time.monotonic() + _SEND_WITHIN
        while view:
            try:
                view = view[self._socket.send(view) :]
            except OSError as error:
                if not _would_block(error):
                    raise RetryableError(f"{self.place}: {_reason(error)}") from error
                if not self._poll(select.POLLOUT | select.POLLIN, deadline):
                    raise RetryableError(f"{self.place}: it accepts no data") from error

    def subscribe(self, subject: str, number: int) -> None:
        """Subscribe to one more subject. Raise RetryableError if the connection fails."""
        self._out += f"SUB {subject} {number}\r\n".encode()
        self.flush()

    def wait(self, seconds: float) -> None:
        """Wait until data arrive, at most `seconds`."""
        if not self._received:
            self._poll(select.POLLIN, time.monotonic() + seconds)

    def seconds_to_ping(self) -> float:
        """Return the seconds until `keep_alive` must be called."""
        return max(0.0, self._last_word + _PING_EVERY - time.monotonic())

    def keep_alive(self) -> None:
        """Send a PING to a silent server. Raise RetryableError if the last one was not answered."""
        if self.seconds_to_ping() > 0:
            return
        if self._is_asked:
            raise RetryableError(f"{self.place}: no answer within {_PING_EVERY:g} seconds")
        self._is_asked = True
        self._last_word = time.monotonic()
        self._out += b"PING\r\n"
        self.flush()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _log_in(self, way: NatsOptions, server: Server, deadline: float) -> None:
        info = self._await("INFO", deadline)
        try:
            found = msgspec.json.decode(info.argument, type=_Info)
        except msgspec.MsgspecError:
            raise RetryableError(f"{self.place}: it does not speak NATS") from None
        self.max_payload = max(1, found.max_payload)
        if way.context is not None:
            if not found.tls_required:
                raise RetryableError(f"{self.place}: it offers no TLS")
            self._encrypt(way.context, server.host, deadline)
        elif found.tls_required:
            import ssl

            self._encrypt(ssl.create_default_context(), server.host, deadline)
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {
            "verbose": False, "pedantic": False, "lang": "python", "version": __version__,
            "name": f"{PRODUCER} {way.name}", "protocol": 1, "headers": True, "no_responders": True,
            **login_fields(way.login, found.nonce),
        }  # fmt: skip
        self._out += b"CONNECT " + msgspec.json.encode(options) + b"\r\n"

    def _encrypt(self, context: ssl.SSLContext, host: str, deadline: float) -> None:
        self._socket.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except (OSError, ValueError) as error:
            raise RetryableError(f"{self.place}: {_reason(error)}") from error

    def _await(self, operation: str, deadline: float) -> ServerLine:
        """Wait for a line during the login. Earlier messages are kept."""
        while True:
            self._socket.setblocking(False)
            lines = list(self._read())
            self._received += [item for item in lines if isinstance(item, Received)]
            for item in lines:
                if isinstance(item, ServerLine):
                    if item.operation == operation:
                        return item
                    self._handle(item)
            if not self._poll(select.POLLIN, deadline):
                raise RetryableError(f"{self.place}: no answer within {_CONNECT_WITHIN:g} seconds")

    def _read(self) -> Iterator[Received | ServerLine]:
        """Read received data, unless too many answers are still unsent."""
        total = 0
        while True:
            try:
                data = self._socket.recv(_PIECE)
            except OSError as error:
                if _would_block(error):
                    return
                raise RetryableError(f"{self.place}: {_reason(error)}") from error
            if not data:
                raise RetryableError(f"{self.place}: the connection is lost")
            self._last_word = time.monotonic()
            self._is_asked = False
            try:
                yield from self._parser.feed(data)
            except UnparsableError as error:
                raise RetryableError(f"{self.place}: {error}") from error
            total += len(data)
            is_enough = len(data) < _PIECE or total >= _MOST_AT_ONCE
            if is_enough and not getattr(self._socket, "pending", lambda: 0)():
                return

    def _handle(self, line: ServerLine) -> None:
        if line.operation == "PING":
            self._out += b"PONG\r\n"
        elif line.operation == "-ERR":
            text = line.argument.decode("utf-8", "replace").strip(" '")
            if "permissions violation for publish" in text.lower():
                from ccagent.log import logger

                logger.warning("%s: this user may not publish answers: grant it _INBOX.>",
                               self.place)  # fmt: skip
                return
            meaning = (
                "the login is refused" if "authorization violation" in text.lower()
                else hide_secrets(text, self._secrets)
            )  # fmt: skip
            raise RetryableError(f"{self.place}: {meaning}")

    def _poll(self, events: int, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def login_fields(login: NatsLogin, nonce: str) -> dict[str, Any]:
    """Return the login fields of CONNECT. Raise RetryableError."""
    if login.seed:
        nkeys: Any = import_module("nkeys")  # the package has no types
        pair = nkeys.from_seed(bytearray(login.seed.encode()))
        signature = base64.urlsafe_b64encode(bytes(pair.sign(nonce.encode()))).decode()
        fields: dict[str, Any] = {"sig": signature.rstrip("=")}
        if login.jwt:
            return fields | {"jwt": login.jwt}
        return fields | {"nkey": bytes(pair.public_key).decode()}
    if login.token:
        return {"auth_token": login.token}
    return {"user": login.user, "pass": login.password} if login.password else {}


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    return type(error).__name__ in {"SSLWantReadError", "SSLWantWriteError"}


def _reason(error: Exception) -> str:
    """Return an error as a phrase. TLS errors about certificates contain no text of the server."""
    verify = getattr(error, "verify_message", "")
    if verify:
        return f"its certificate can't be trusted: {verify}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_WITHIN:g} seconds"
    return str(getattr(error, "strerror", None) or type(error).__name__)
