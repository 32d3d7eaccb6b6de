"""The HTTP client of the metric store."""

from __future__ import annotations

from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from ccagent.agents.metrics.presets import Preset, apply_preset
from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, NotHereError, NotPermittedError, UnparsableError
from ccagent.log import printable
from ccagent.net.error_texts import explain_network_error
from ccagent.net.http_client import HttpConnection
from ccagent.net.tls import make_tls_context
from ccagent.net.urls import server_of_url
from ccagent.stores.metrics.usage.table import UsageAnswer
from ccagent.views.job.figures import (
    CARD_METRICS,
    JOB_METRICS,
    LARGEST_VALUE,
    NODE_METRICS,
    JobFacts,
    JobSeries,
)
from ccagent.views.job.mounts import LATE, MOST_PARTS, JobPartSums, amount_of, part_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.views.job.mounts import JobMounts
    from ccagent.views.settings import ViewSettings

T = TypeVar("T")

_LARGEST = 256 << 20
_AT_ONCE = 16
"""Maximum of nodes per request: their series are in memory together."""

_PARTS_AT_ONCE = 100

_SHOWN = 200
"""Maximum of characters of a response in an error."""


class _SeriesAnswer(msgspec.Struct, frozen=True):
    start: int = msgspec.field(default=0, name="from")
    resolution: int = 0
    data: list[float | None] = []
    error: str = ""


class _QueryAnswer(msgspec.Struct, frozen=True):
    results: list[list[_SeriesAnswer]]


class StoreClient:
    """A client of one store."""

    def __init__(self, settings: ViewSettings) -> None:
        """settings: checked, with a store."""
        self._preset: Preset = settings.preset
        self._seconds = settings.time_limit.seconds
        self._target = urlsplit(settings.store)
        server = server_of_url(self._target)
        self._path = self._target.path.rstrip("/")
        self.place = f"{self._target.scheme}://{server}{self._target.path}"
        """The store's URL without credentials."""
        self._headers = {"Content-Type": "application/json"}
        if settings.token_file:
            self._headers["Authorization"] = f"Bearer {read_secret(settings.token_file)}"
        context = make_tls_context(settings.http()) if self._target.scheme == "https" else None
        self._connection = HttpConnection(server, context, self._seconds, largest=_LARGEST + 1)

    def find_job(self, job: str, cluster: str = "") -> JobFacts:
        """Return the latest run of a job.

        Raise ConfigurationError if the job is unknown, or is in several clusters and `cluster` is
        empty.
        """
        query = f"/api/job/?job={quote(job, safe='')}&parts=1"
        if cluster:
            query += f"&cluster={quote(cluster, safe='')}"
        found = self._decode(self._ask(query), list[JobFacts])
        if not found:
            where = f" in cluster {cluster}" if cluster else ""
            raise ConfigurationError(
                f"job {job}: unknown to {self.place}{where}; the store gets jobs from the"
                " agent jobs on Slurm's master, at their start"
            )
        clusters = sorted({one.cluster for one in found})
        if len(clusters) > 1:
            raise ConfigurationError(
                f"job {job}: in the clusters {', '.join(map(printable, clusters))}; choose one"
                " with --cluster"
            )
        return found[-1]

    def read_series(self, facts: JobFacts, now: float) -> Iterator[JobSeries]:
        """Yield the series of a job, grouped by node."""
        stop = int(now) + 1 if facts.stop is None else facts.stop
        for begin in range(0, len(facts.nodes), _AT_ONCE):
            nodes = facts.nodes[begin : begin + _AT_ONCE]
            queries = [one for node in nodes for one in self._queries_of(facts, node)]
            for (metric, node, card, factor), found in self._query(facts, stop, queries):
                values = [_in_base_unit(value, factor) for value in found.data]
                yield JobSeries(metric, node, card, found.start, found.resolution, values)

    def read_mounts(self, facts: JobFacts, now: float) -> JobMounts | None:
        """Return the mounts and network traffic of a job; None if the store has none."""
        stop = int(now) + 1 if facts.stop is None else facts.stop + LATE
        sums = JobPartSums()
        names = [(node, name) for node, each in facts.parts.items() for name in each]
        for begin in range(0, min(len(names), MOST_PARTS), _PARTS_AT_ONCE):
            queries = [
                (
                    {"metric": metric, "host": node, "type": "job", "type-ids": [facts.job],
                     "subtype": "", "subtype-ids": [name]},
                    (node, name, metric),
                )
                for node, name in names[begin : begin + _PARTS_AT_ONCE]
                for metric in part_metrics(name)
            ]  # fmt: skip
            for part, found in self._query(facts, stop, queries):
                sums.add(*part, amount_of(part[2], found.data, found.resolution))
        return sums.finish()

    def read_usage(self, query: dict[str, str]) -> UsageAnswer:
        """Return the sums of energy of ended jobs. query: parameters of `/api/usage`."""
        return self._decode(self._ask(f"/api/usage/?{urlencode(query)}"), UsageAnswer)

    def _query(
        self, facts: JobFacts, stop: int, queries: Sequence[tuple[dict[str, Any], T]]
    ) -> Iterator[tuple[T, _SeriesAnswer]]:
        """Yield the series that have values, each with the second item of its query."""
        body = msgspec.json.encode({
            "cluster": facts.cluster, "from": facts.start, "to": max(facts.start, stop),
            "with-stats": False, "with-padding": False, "queries": [query for query, _ in queries],
        })  # fmt: skip
        answer = self._decode(self._ask("/api/query/", body), _QueryAnswer)
        for (_, key), results in zip(queries, answer.results, strict=False):
            for one in results:
                if one.data and not one.error and one.resolution > 0:
                    yield key, one

    def _queries_of(
        self, facts: JobFacts, node: str
    ) -> Iterator[tuple[dict[str, Any], tuple[str, str, str, float]]]:
        """Yield queries, each with metric, node, card, and the factor to the base unit."""
        cards = facts.details.cards.get(node, [])
        parts: list[tuple[dict[str, str], str, list[str]]] = [
            (JOB_METRICS, "job", [facts.job]),
            (NODE_METRICS if facts.details.is_exclusive else {}, "", [""]),
            (CARD_METRICS, "accelerator", cards),
        ]
        for metrics, kind, numbers in parts:
            for metric, unit in metrics.items():
                output = apply_preset(self._preset, metric, unit)
                for number in numbers:
                    query: dict[str, Any] = {"metric": output.name, "host": node}
                    if kind:
                        query |= {"type": kind, "type-ids": [number]}
                    card = number if kind == "accelerator" else ""
                    yield query, (metric, node, card, output.factor)

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnparsableError(
                f"{self.place}: not the response of a metric store with a table of jobs: {error}"
            ) from error

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        """Return the body of a successful response.

        Raise NotHereError if the store can't be reached, NotPermittedError if it refuses the token,
        UnparsableError for any other response.
        """
        try:
            # ClusterCockpit's store answers queries only as GET, with the query as body.
            answer = self._connection.get(f"{self._path}{path}", self._headers, body)
        except HTTPException as error:
            raise UnparsableError(
                f"{self.place}: the response is not HTTP: {printable(str(error))[:_SHOWN]}"
            ) from error
        except (OSError, UnicodeError) as error:
            reason = (
                explain_network_error(error, self._seconds)
                or getattr(error, "strerror", None)
                or error
            )
            raise NotHereError(f"{self.place}: {reason}") from error
        if len(answer.body) > _LARGEST:
            raise UnparsableError(
                f"{self.place}: the response is not HTTP: more than {_LARGEST >> 20} MiB"
            )
        status = answer.status
        if status == 200:
            return answer.body
        said = printable(answer.body[:_SHOWN].decode("utf-8", "replace").strip())
        if status in {401, 403}:
            raise NotPermittedError(f"{self.place}: {status}: {said}; see token-file of views.toml")
        if status == 404:
            raise UnparsableError(
                f"{self.place}: not a metric store of ccagent with a table of jobs (404)"
            )
        raise UnparsableError(f"{self.place}: refused the query with status {status}: {said}")


def _in_base_unit(value: float | None, factor: float) -> float | None:
    """Return a value in its base unit; None if it is implausible."""
    if value is None or not abs(value / factor) < LARGEST_VALUE:
        return None
    return value / factor
