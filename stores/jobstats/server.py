"""The store process: embedded PostgreSQL, HTTP, and an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from typing import TYPE_CHECKING

import uvicorn

from ccagent.config.duration import parse_size
from ccagent.errors import ConfigurationError
from ccagent.log import logger, say
from ccagent.net.serving import (
    EmbeddedServer,
    ServingLimits,
    limit_connections,
    silence_uvicorn,
)
from ccagent.net.urls import describe_address, is_loopback
from ccagent.service.instance import Notifier
from ccagent.stores.database import DatabaseAwayError
from ccagent.stores.jobstats.admission import MOST_SKIPPED, TokenTable
from ccagent.stores.jobstats.api import JobstatsApi
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.metrics.settings import split_address
from ccagent.stores.process import handle_accept_errors, plan_connections, shorten_collections

if TYPE_CHECKING:
    from ccagent.stores.jobstats.embedded import EmbeddedPostgres
    from ccagent.stores.jobstats.settings import JobstatsStoreSettings
    from ccagent.stores.metrics.settings import StoreTlsSettings

_LOOK_EVERY = 2.0
_START_EVERY = 0.2
_START_WITHIN = 30.0
_SUMS_EVERY = 60.0
_HOUSEKEEPING_EVERY = 600.0
_END_WITHIN = 20
_IDLE = 75
_BACKLOG = 1024
_SPARE = 8
"""Connections beyond the limit that get the response 503."""

_ANSWER_WITHIN = 2.0
_LARGEST_HEAD = 128 << 10


class JobstatsServer:
    """Serves until SIGTERM or SIGINT."""

    def __init__(self, settings: JobstatsStoreSettings) -> None:
        """Set the settings, and start the embedded PostgreSQL. Raise ConfigurationError."""
        self._settings = settings
        self._tokens = TokenTable(settings.token_file)
        self._context = make_context(settings.tls)
        self._postgres = _start_postgres(settings)
        try:
            url = settings.database if self._postgres is None else self._postgres.url
            self._service = JobstatsService(settings, url)
        except BaseException:
            self._stop_postgres()
            raise
        self._api = JobstatsApi(self._service, self._tokens)
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Serve. Raise ConfigurationError, OSError."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        listening = _listen(self._settings.listen)
        notifier = Notifier()
        handle_accept_errors(loop)
        plan = plan_connections(self._settings.limits.connections, _BACKLOG)
        config = uvicorn.Config(
            self._api.application(),
            http=limit_connections(self._plan_limits(plan.most)),
            backlog=plan.backlog,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=plan.most,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_END_WITHIN,
        )
        silence_uvicorn()
        config.load()
        config.ssl = self._context
        server = EmbeddedServer(config)
        tasks = [
            loop.create_task(self._prepare(stopping)),
            loop.create_task(self._watch(notifier, stopping)),
        ]
        serving = loop.create_task(server.serve(sockets=[listening]))
        host, port = listening.getsockname()[:2]
        say(f"listening on {describe_address(host, port, is_tls=self._context is not None)}")
        self._warn_if_open(host)
        shorten_collections()
        notifier.ready(f"port {port}")
        waiting = loop.create_task(stopping.wait())
        await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
        notifier.stopping()
        server.should_exit = True
        await serving
        waiting.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Finish the work in threads, then stop the database."""
        self._api.close()
        self._service.close()
        self._stop_postgres()

    def _stop_postgres(self) -> None:
        if self._postgres is not None:
            self._postgres.stop()

    async def _prepare(self, stopping: asyncio.Event) -> None:
        """Prepare the database as soon as it is reachable. Then do periodic work."""
        said = ""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._service.is_ready:
            try:
                await asyncio.to_thread(self._service.prepare)
            except DatabaseAwayError as error:
                # An embedded PostgreSQL needs some time to start.
                is_starting = self._postgres is not None and loop.time() - began < _START_WITHIN
                if not is_starting and str(error) != said:
                    said = str(error)
                    logger.warning("%s; retrying every %g s", error, _LOOK_EVERY)
                await asyncio.sleep(_START_EVERY if is_starting else _LOOK_EVERY)
            except Exception as error:  # noqa: BLE001 - it ends the store, with its reason
                self._failure = error
                stopping.set()
                return
        kept = -_HOUSEKEEPING_EVERY
        while True:
            try:
                if loop.time() - kept >= _HOUSEKEEPING_EVERY:
                    kept = loop.time()
                    await asyncio.to_thread(self._service.keep_house)
                await asyncio.to_thread(self._service.sum_up)
            except Exception as error:  # noqa: BLE001 - the retention must not end silently
                logger.error("retention, sums: internal error", exc_info=error)
            await asyncio.sleep(_SUMS_EVERY)

    def _plan_limits(self, most: int) -> ServingLimits:
        """Return the limits of connections. One address may have half of all."""
        limits = self._settings.limits
        return ServingLimits(
            most + _SPARE,
            max(1, most // 2),
            # A body that comes too slowly gets an answer before its connection ends.
            limits.time.seconds + _ANSWER_WITHIN,
            _LARGEST_HEAD,
            parse_size(limits.body) + MOST_SKIPPED,
            refused=self._count_refused,
        )

    def _count_refused(self, address: str) -> None:
        self._service.count_refused_request(f"address {address}")

    async def _watch(self, notifier: Notifier, stopping: asyncio.Event) -> None:
        """Notify the watchdog, and check PostgreSQL."""
        while True:
            notifier.alive()
            if self._postgres is not None:
                try:
                    self._postgres.check()
                except ConfigurationError as error:
                    self._failure = error
                    stopping.set()
                    return
            await asyncio.sleep(_LOOK_EVERY)

    def _reload(self) -> None:
        """Read the certificate again, for new connections. `TokenTable` reloads tokens itself."""
        tls = self._settings.tls
        if self._context is not None:
            try:
                renew_certificate(self._context, tls)
                logger.info("tls: read %s again", tls.certificate)
            except ConfigurationError as error:
                logger.error("%s; the previous certificate stays in use", error)

    def _warn_if_open(self, host: str) -> None:
        if self._tokens.is_open and not is_loopback(host):
            logger.warning(
                "listen: everyone who can connect to %s can read and write: set token-file", host
            )


def run_jobstats_store(settings: JobstatsStoreSettings) -> None:
    """Run a store until SIGTERM or SIGINT. Raise ConfigurationError, OSError."""
    server = JobstatsServer(settings)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(server.run())
    finally:
        server.close()


def _start_postgres(settings: JobstatsStoreSettings) -> EmbeddedPostgres | None:
    if not settings.data:
        return None
    from ccagent.stores.jobstats.embedded import EmbeddedPostgres

    return EmbeddedPostgres(settings.data, settings.database_user, settings.connections)


def _listen(address: str) -> socket.socket:
    """Return a listening socket. Raise OSError."""
    host, port = split_address(address)
    family, is_dual = socket.AF_INET, False
    if host:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    elif socket.has_dualstack_ipv6():  # false if the kernel was booted without IPv6
        family, is_dual = socket.AF_INET6, True
    return socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
    )


def make_context(tls: StoreTlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context for HTTPS; None for HTTP. Raise ConfigurationError."""
    if not tls.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tls: {tls.certificate} and {tls.key}: {error}; expected a chain in PEM and its key"
            " without a password"
        ) from None
    return context


def renew_certificate(context: ssl.SSLContext, tls: StoreTlsSettings) -> None:
    """Read certificate and key again. Raise ConfigurationError, and keep the previous ones.

    A context that is given a certificate without its key loses the previous pair, too. So another
    context tries them first.
    """
    make_context(tls)
    context.load_cert_chain(tls.certificate, tls.key, password="")
