"""VictoriaMetrics as an engine: import and export of values.

Source: VictoriaMetrics, /api/v1/import and /api/v1/export (JSON lines). Levels become the labels
type, type_id, stype and stype_id.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from base64 import b64encode
from http.client import responses
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode, urlsplit

from ccagent.errors import CcagentError, ConfigurationError
from ccagent.net.http_client import HTTP_ERRORS, HttpConnection
from ccagent.net.urls import server_of_url
from ccagent.stores.metrics.line_keys import add_part, level_path
from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.stores.metrics.line_keys import MetricCatalogue

_SECONDS = 60.0
"""Time limit of a connection attempt, and of each whole response."""

_LARGEST = 1 << 30
_BYTES_OF_VALUE = 64
"""Maximum bytes of a value and its time in a response, including a share of the series' name."""

_MILLISECONDS = 1000


class EngineError(CcagentError):
    """The engine does not answer, or refuses a request."""


class VictoriaEngine:
    """Writes values to VictoriaMetrics, and reads them. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Set the URL of a single-node VictoriaMetrics, optionally with user and password.

        Raise ConfigurationError.
        """
        try:
            parts = urlsplit(url)
            self._server = server_of_url(parts)
        except (ValueError, KeyError):
            parts = urlsplit("")
        if not parts.hostname or not _is_path(parts.path):
            raise ConfigurationError(
                "engine-url: expected http://HOST:PORT or http://USER:PASSWORD@HOST:PORT"
            )
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._place = parts.netloc.rpartition("@")[2]
        """Address without the password, for error messages."""
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._local = threading.local()

    def import_text(self, text: bytes) -> None:
        """Write values in Prometheus' text format, times in ms. Raise EngineError."""
        self._ask("/api/v1/import/prometheus", text)

    def import_lines(self, lines: bytes) -> None:
        """Write values in JSON lines. Raise EngineError."""
        self._ask("/api/v1/import", lines)

    def read(
        self,
        catalogue: MetricCatalogue,
        cluster: str,
        selected: tuple[Iterable[str] | None, Iterable[str] | None],
        times: tuple[int, int],
        now: Callable[[], float],
        *,
        most: int,
    ) -> MetricStore:
        """Return a store with the values of the selected nodes and metrics; None: all.

        Raise EngineError; raise BadRequestError if there are more than `most` values.
        """
        start, end = times
        match = _selector(cluster, selected)
        query = urlencode({"match[]": match, "start": start, "end": end}).encode()
        store = MetricStore(catalogue, now)
        largest = min(_LARGEST, most * _BYTES_OF_VALUE + _BYTES_OF_VALUE)
        answer = self._ask("/api/v1/export", query, largest)
        if len(answer) > largest:
            raise BadRequestError(f"the response would exceed {most} values; request less at once")
        for line in answer.splitlines():
            _fill(store, json.loads(line))
        return store

    def add_first_values(
        self,
        store: MetricStore,
        cluster: str,
        selected: tuple[Iterable[str] | None, Iterable[str] | None],
        begin: int,
    ) -> None:
        """Add a value to a store at the time of each series' first value since `begin`.

        Responses to a range before all values then have the same padding as those from memory.
        Raise EngineError.
        """
        now = int(store.now())
        if begin >= now:
            return
        match = f"{_selector(cluster, selected)}[{now - begin}s]"
        query = {"query": f"tfirst_over_time({match}) keep_metric_names", "time": now, "nocache": 1}
        answer = self._ask("/api/v1/query", urlencode(query).encode())
        for one in json.loads(answer)["data"]["result"]:
            time = int(float(one["value"][1])) * _MILLISECONDS
            _fill(store, {"metric": one["metric"], "timestamps": [time], "values": [0.0]})

    def _ask(self, path: str, body: bytes, largest: int = _LARGEST) -> bytes:
        """Post a body. Return the response, cut one byte after `largest`. Raise EngineError."""
        connection = self._connection()
        try:
            answer = connection.post(self._path + path, body, self._headers, largest=largest + 1)
        except HTTP_ERRORS as error:
            raise EngineError(f"{self._place}: {connection.explain(error)}") from error
        if answer.status >= 300:
            reason = responses.get(answer.status, "")
            raise EngineError(f"{self._place}: {answer.status} {reason}")
        return answer.body

    def _connection(self) -> HttpConnection:
        """Return the connection of this thread."""
        found: HttpConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = HttpConnection(
                self._server, self._context, _SECONDS, largest=_LARGEST + 1
            )
        return found


def _is_path(text: str) -> bool:
    """Return whether a text is a valid path of a request."""
    return text.isascii() and text.isprintable() and " " not in text


def _selector(cluster: str, selected: tuple[Iterable[str] | None, Iterable[str] | None]) -> str:
    """Return the selector of nodes and metrics; None: all."""
    match = f"cluster={json.dumps(cluster, ensure_ascii=False)}"
    for label, names in zip(("hostname", "__name__"), selected, strict=True):
        match += f",{label}=~{_one_of(names)}" if names is not None else ""
    return f"{{{match}}}"


def _one_of(names: Iterable[str]) -> str:
    """Return a quoted regular expression that matches any of the names."""
    return json.dumps("|".join(re.escape(name) for name in sorted(set(names))), ensure_ascii=False)


def _fill(store: MetricStore, exported: dict[str, Any]) -> None:
    labels: dict[str, str] = exported["metric"]
    metric = labels["__name__"]
    tags = {name.replace("_", "-"): tag for name, tag in labels.items()}
    known = store.catalogue.get(metric)
    if known is None:
        return
    try:
        path = add_part(level_path(tags, ""), tags, store.catalogue.part_tags(metric))
    except ValueError:
        return  # a series that ccagent did not write
    for time, value in zip(exported["timestamps"], exported["values"], strict=True):
        if value is not None:
            store.write(path, metric, time // _MILLISECONDS, float(value))
