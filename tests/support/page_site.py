"""Pages of a store in this process: filled with a simulated cluster, asked without a socket."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ccagent.records.line_protocol import Line
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_table import JobTable
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.views.web.access import PageAccess
from ccagent.views.web.application import PageApplication
from ccagent.views.web.context import PageSources
from ccagent.views.web.data.job_search import JobSearch
from tests.support.simulated_cluster import CLUSTER, SimulatedCluster
from tests.support.simulated_jobs import DemoJob

KEY = Ed25519PrivateKey.from_private_bytes(b"p" * 32)


class PageReply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def public_key() -> str:
    return base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


def token(**claims: object) -> str:
    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    text = encoded(b'{"alg":"EdDSA"}') + "." + encoded(json.dumps(claims).encode())
    return f"{text}.{encoded(KEY.sign(text.encode()))}"


class PageSite:
    """Pages of a simulated cluster whose day ends now."""

    def __init__(
        self,
        directory: Path,
        *,
        jobs: list[DemoJob] | None = None,
        nodes: int = 8,
        seconds: int = 7200,
        settings: WebSettings | None = None,
        has_key: bool = False,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self.now = int(time.time())
        self.store = MetricStore(MetricCatalogue({"*": StoredMetric(60, "avg")}), lambda: self.now)
        self.cluster = SimulatedCluster(self.now, nodes, jobs)
        self.cluster.fill(self.store, seconds)
        path = str(directory / "jobs.sqlite")
        self.table = JobTable(path)
        self.events = JobEvents(self.table)
        for job in self.cluster.stored_jobs():
            self.table.start(job)
        self.search = JobSearch(path)
        chosen = settings or WebSettings()
        self.sources = PageSources(self.store, self.search, chosen, simulated=frozenset({CLUSTER}))
        verifier = TokenVerifier(public_key(), time.time) if has_key else None
        access = PageAccess(chosen, verifier)
        self.application = PageApplication(self.sources, access, hosts=hosts)

    def start(self, event: dict[str, Any]) -> None:
        """Take the event of a job's start."""
        text = json.dumps(event)
        self.events.take(Line("job", {"function": "start_job"}, "event", text, None))

    def close(self) -> None:
        self.search.close()
        self.table.close()

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        client: str = "127.0.0.1",
        **headers: str,
    ) -> PageReply:
        """Return the answer to a request; names of headers with `_` for `-`."""
        return asyncio.run(self._ask(path, method, body, client, headers))

    async def _ask(
        self, path: str, method: str, body: bytes, client: str, headers: dict[str, str]
    ) -> PageReply:
        place, _, query = path.partition("?")
        given = {"host": "store.example"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": place, "raw_path": place.encode(), "root_path": "",
            "query_string": query.encode(), "client": (client, 1), "server": ("store", 80),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        messages: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(dict(message))

        await self.application.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        text = b"".join(message.get("body", b"") for message in messages[1:])
        return PageReply(messages[0]["status"], found, text)
