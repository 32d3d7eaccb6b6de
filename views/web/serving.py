"""The HTTP server of the pages, in the process and the event loop of a store."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from typing import TYPE_CHECKING

import uvicorn

from ccagent.errors import ConfigurationError
from ccagent.log import logger, say
from ccagent.net.serving import EmbeddedServer, ServingLimits, limit_connections
from ccagent.net.urls import is_loopback
from ccagent.stores.metrics.server import StoreServer
from ccagent.stores.metrics.settings import StoreSettings, split_address
from ccagent.stores.process import plan_connections
from ccagent.views.web.access import PageAccess
from ccagent.views.web.application import PageApplication
from ccagent.views.web.context import PageSources
from ccagent.views.web.data.job_search import JobSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.tokens import TokenVerifier
    from ccagent.stores.metrics.usage.keeper import UsageKeeper

_MOST_AT_ONCE = 1024
_MOST_CONNECTIONS = 2048
_MOST_OF_ADDRESS = 256
"""A quarter of the connections that the server answers."""

_BACKLOG = 256
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class PageServer:
    """The HTTP server of the pages of a store."""

    def __init__(
        self,
        settings: StoreSettings,
        store: MetricStore,
        verifier: TokenVerifier | None,
        *,
        simulated: frozenset[str] = frozenset(),
        usage: UsageKeeper | None = None,
    ) -> None:
        """Open the socket.

        Raise ConfigurationError for an unreadable table of jobs, OSError if listening fails.
        """
        self._host, port = split_address(settings.web.listen)
        access, is_local = PageAccess(settings.web, verifier), is_loopback(self._host)
        if not is_local:
            _warn_of_risks(settings, access)
        try:
            self._jobs = JobSearch(os.path.join(settings.data, "jobs.sqlite"))
        except sqlite3.Error as error:
            raise ConfigurationError(f"{settings.data}: table of jobs: {error}") from error
        sources = PageSources(
            store, self._jobs, settings.web, simulated=simulated,
            retention=int(settings.retention.seconds), usage=usage,
        )  # fmt: skip
        # DNS rebinding is only a risk for local pages without login.
        hosts = _LOCAL if is_local and access.is_open else ()
        application = PageApplication(sources, access, hosts=hosts)
        plan = plan_connections(_MOST_CONNECTIONS, _BACKLOG, others=settings.limits.connections)
        limits = ServingLimits(
            plan.most, _MOST_OF_ADDRESS, unlimited=frozenset(settings.web.proxies)
        )
        self._server = EmbeddedServer(
            uvicorn.Config(
                application.app, host=self._host, port=port, lifespan="off", ws="none",
                http=limit_connections(limits), backlog=plan.backlog,
                log_config=None, log_level="error", access_log=False,
                server_header=False, proxy_headers=False,
                limit_concurrency=min(_MOST_AT_ONCE, plan.most), timeout_keep_alive=60,
                timeout_graceful_shutdown=3, ssl_certfile=settings.tls.certificate or None,
                ssl_keyfile=settings.tls.key or None,
            )
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listening = socket.create_server((self._host, port), family=family, backlog=_BACKLOG)
        self._scheme = "https" if settings.tls.certificate else "http"
        self.url = ""

    async def run(self) -> None:
        """Serve until cancelled."""
        port = self._listening.getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host or "localhost"
        self.url = f"{self._scheme}://{shown}:{port}/"
        say(f"pages at {self.url}")
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._server.should_exit = True
            await serving
            raise
        finally:
            self._jobs.close()


def _warn_of_risks(settings: StoreSettings, access: PageAccess) -> None:
    """Warn of pages that are open to other machines, and of tokens without TLS."""
    if access.is_open:
        logger.warning(
            "pages: anyone who can connect to %s sees the jobs of all; set jwt-public-key or"
            " web.proxies", settings.web.listen,
        )  # fmt: skip
    elif access.takes_tokens and not (settings.tls.certificate or settings.web.behind_tls):
        logger.warning(
            "pages: tokens are sent without TLS; set tls, or use a proxy with it and set"
            " web.behind-tls"
        )


class StoreWithPages(StoreServer):
    """A metric store that serves its pages in the same process."""

    def __init__(
        self,
        settings: StoreSettings,
        now: Callable[[], float] = time.time,
        simulated: frozenset[str] = frozenset(),
    ) -> None:
        """Read the stored data, and open the pages' socket.

        Raise ConfigurationError, LockedError, OSError. simulated: clusters that the pages mark as
        simulated.
        """
        super().__init__(settings, now)
        self.pages = PageServer(
            settings, self.store, self.verifier, simulated=simulated, usage=self.usage
        )

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        return [*super().work(), self.pages.run()]
