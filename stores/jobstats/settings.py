"""The configuration of the jobstats store, and its defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.settings import StoreTlsSettings, parse_size, split_address

_LONGEST = 36500 * 86400.0
"""A hundred years: times beyond can't be computed."""


class IngestLimitSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[limits]`."""

    body: Annotated[str, Meta(description="largest body of a request, inflated")] = "8MB"
    bodies: Annotated[str, Meta(description="bodies of all requests at once")] = "64MB"
    records: Annotated[int, Meta(ge=1, description="records in one array")] = 20_000
    connections: Annotated[int, Meta(ge=1, description="open connections")] = 1000
    future: Annotated[Duration, Meta(description="how far ahead of the clock a record may be")] = (
        Duration("1h")
    )
    time: Annotated[Duration, Meta(description="time for a request to arrive")] = Duration("30s")
    query: Annotated[Duration, Meta(description="time for a query of the database")] = Duration(
        "60s"
    )


class SeriesTableSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[series]`: how observations are kept."""

    retention: Annotated[Duration, Meta(description="how long observations are kept")] = Duration(
        "90d"
    )
    partition: Annotated[
        Duration, Meta(description="time in one partition, or chunk of TimescaleDB")
    ] = Duration("1d")
    compress_after: Annotated[
        Duration, Meta(description="TimescaleDB: age of chunks that are compressed")
    ] = Duration("7d")
    hourly_retention: Annotated[
        Duration, Meta(description="TimescaleDB: how long hourly sums are kept")
    ] = Duration("730d")


class JobstatsStoreSettings(Settings, frozen=True, kw_only=True):
    """All keys of the jobstats store's configuration."""

    data: Annotated[str, Meta(description="directory of a PostgreSQL of the store's own")] = ""
    database: Annotated[str, Meta(description="postgresql:// URL of another PostgreSQL")] = ""
    password_file: Annotated[str, Meta(description="file with the database's password")] = ""
    connections: Annotated[int, Meta(ge=2, le=100, description="connections to the database")] = 4
    listen: Annotated[str, Meta(description="ADDRESS:PORT of the HTTP interface")] = (
        "127.0.0.1:8083"
    )
    token_file: Annotated[
        str, Meta(description="file with the tokens of senders and readers; empty: open to all")
    ] = ""
    namespaces_file: Annotated[
        str, Meta(description="file with a format and its UUID a line; others are in the database")
    ] = ""
    formats: Annotated[
        tuple[str, ...], Meta(description="what clients' jobid_name may be, tried in order")
    ] = ("%j:%u:%H", "%j:%u:%h", "%e.%u", "%j")
    first: Annotated[
        Literal["skip", "count"],
        Meta(description="what a series' first record counts: nothing, or the whole counters"),
    ] = "skip"
    database_user: Annotated[
        str, Meta(description="as root: the system user who runs PostgreSQL; empty: data's owner")
    ] = ""
    series: SeriesTableSettings = SeriesTableSettings()
    tls: StoreTlsSettings = StoreTlsSettings()
    limits: IngestLimitSettings = IngestLimitSettings()


def check_jobstats_settings(settings: JobstatsStoreSettings, place: str) -> JobstatsStoreSettings:
    """Return settings that can be used. Raises ConfigurationError with all problems."""
    problems = [*_find_bad_values(settings), *_find_bad_formats(settings)]
    if bool(settings.data) == bool(settings.database):
        problems.append(
            "data, database: one of them is needed: a directory for a PostgreSQL of the store's "
            "own (--data DIR), or the URL of another (--database URL)"
        )
    if settings.database and not settings.database.startswith(("postgresql://", "postgres://")):
        problems.append("database: expected postgresql://USER@HOST/NAME")
    if bool(settings.tls.certificate) != bool(settings.tls.key):
        problems.append("tls: certificate and key need each other")
    if problems:
        raise ConfigurationError(*(f"{place}: {problem}" for problem in problems))
    return settings


def _find_bad_values(settings: JobstatsStoreSettings) -> list[str]:
    problems: list[str] = []
    for key, size in (("body", settings.limits.body), ("bodies", settings.limits.bodies)):
        try:
            parse_size(size)
        except ValueError as error:
            problems.append(f"limits.{key}: {error}")
    try:
        split_address(settings.listen)
    except ValueError as error:
        problems.append(f"listen: {error}")
    series = settings.series
    if settings.limits.future.seconds > _LONGEST:
        problems.append("limits.future: at most 36500d")
    if series.partition.seconds < 60 or series.partition.seconds % 60:
        problems.append("series.partition: whole minutes, at least 1m")
    if series.retention.seconds < series.partition.seconds:
        problems.append("series.retention: at least one series.partition")
    elif series.retention.seconds > _LONGEST:
        problems.append("series.retention: at most 36500d")
    elif series.retention.seconds / max(series.partition.seconds, 1) > 5000:
        problems.append("series.partition: too short: at most 5,000 of them in series.retention")
    return problems


def _find_bad_formats(settings: JobstatsStoreSettings) -> list[str]:
    from ccagent.agents.lustre.jobstats.entry_id import IdFormat

    problems: list[str] = []
    for form in settings.formats:
        try:
            IdFormat(form)
        except ValueError as error:
            problems.append(f"formats: {error}")
    return problems
