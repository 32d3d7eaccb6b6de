"""A session with a NATS server in a separate thread, and the choice among addresses of servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.net.error_texts import explain_network_error
from ccagent.net.nats_login import name_server, read_options, split_nats_servers
from ccagent.net.nats_session import GRACE, THREADS, NatsSession, log_loop_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ccagent.net.nats_login import NatsClientSettings, NatsOptions
    from ccagent.net.urls import Server

T = TypeVar("T")
C = TypeVar("C")

_LIFE = 1.0
"""Seconds between checks that the thread of the event loop is alive."""


class NatsThread:
    """A session in an event loop and thread of its own, for users without an event loop."""

    def __init__(self, options: NatsOptions, place: str, server: Server, address: str) -> None:
        """Connect to one of the server's addresses and log in. Raise RetryableError."""
        self._loop = _new_loop()
        self._loop.set_exception_handler(log_loop_error)
        self.session = NatsSession(options, place, self._loop, self._is_harmless)
        self._thread = threading.Thread(
            target=self._work, name=f"{THREADS}{server.host}", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise
        try:
            self._wait(self._open(server, address))
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """False after any failure. Then only `close` may be called."""
        return self.session.is_open and self._thread.is_alive()

    def close(self) -> None:
        """End the session and the thread. Takes at most a few seconds."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(4 * GRACE)

    async def _prepare(self) -> None:
        """Subscribe after the login."""

    def _is_harmless(self, _: NatsSession, error: Exception) -> bool:
        """Return whether an error leaves the session intact."""
        del error
        return False

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop. Raise RetryableError if its thread has ended."""
        if self._loop.is_closed():
            coroutine.close()
            raise RetryableError(f"{self.session.place}: the thread of the connection has ended")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait((future,), _LIFE).done:
                if not self._thread.is_alive():
                    text = f"{self.session.place}: the thread of the connection has ended"
                    raise RetryableError(text)  # noqa: TRY301 - the connection is broken
            return future.result()
        except BaseException:
            # After an interruption a message may be sent only partly.
            self.session.is_broken = True
            future.cancel()
            raise

    async def _open(self, server: Server, address: str) -> None:
        await self.session.open_address(server, address)
        await self.session.run_limited(self._prepare())

    def _work(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            try:
                self._loop.run_until_complete(self._end())
            finally:
                self._loop.close()

    async def _end(self) -> None:
        """Close the session in any state, and end all tasks of the loop."""
        await self.session.end()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)
        await asyncio.sleep(0)


def connect_to_any(
    settings: NatsClientSettings,
    name: str,
    seconds: float,
    make: Callable[[NatsOptions, str, Server, str], C],
) -> C:
    """Return what `make` returns for the first reachable address. Raise RetryableError.

    Secrets and certificates are read again. `make` gets the options, the URL, the server and its
    address. The order is random, to distribute the nodes of a cluster over the servers.
    """
    try:
        servers = split_nats_servers(settings)
        options = read_options(settings, name, seconds)
    except ConfigurationError as error:
        # The file may be valid at the next attempt.
        raise RetryableError(str(error)) from error
    errors: dict[str, None] = {}
    for place, server, address in _find_addresses(settings, servers, errors):
        try:
            return make(options, place, server, address)
        except RetryableError as error:
            errors[str(error)] = None
        except (OSError, RuntimeError) as error:
            # This machine has too few descriptors or threads.
            errors[f"{place}: {error}"] = None
    raise RetryableError("; ".join(errors))


async def open_any(
    settings: NatsClientSettings,
    options: NatsOptions,
    on_error: Callable[[NatsSession, Exception], bool],
) -> NatsSession:
    """Return a session in this event loop with the first reachable address.

    Raise ConfigurationError, RetryableError.
    """
    errors: dict[str, None] = {}
    addresses = _find_addresses(settings, split_nats_servers(settings), errors)
    while found := await asyncio.to_thread(next, addresses, None):
        place, server, address = found
        session = NatsSession(options, place, asyncio.get_running_loop(), on_error)
        try:
            await session.open_address(server, address)
        except RetryableError as error:
            errors[str(error)] = None
        else:
            return session
    raise RetryableError("; ".join(errors))


def _find_addresses(
    settings: NatsClientSettings, servers: list[Server], errors: dict[str, None]
) -> Iterator[tuple[str, Server, str]]:
    """Yield URL, server and address, servers in random order. Add failures to `errors`."""
    for server in random.sample(servers, len(servers)):
        place = name_server(settings, server)
        try:
            addresses = _resolve(server)
        except (OSError, UnicodeError) as error:
            errors[f"{place}: {explain_network_error(error, 0) or error}"] = None
            continue
        for address in addresses:
            yield place, server, address


def _resolve(server: Server) -> list[str]:
    """Return the addresses of a server. Raise OSError, UnicodeError.

    asyncio would resolve the name in a thread that can't be ended.
    """
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop. Raise OSError if no descriptor is free."""
    # A partly created loop would print to stderr on failure. So try its descriptors first.
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()
