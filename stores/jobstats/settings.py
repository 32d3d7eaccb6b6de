"""The configuration of the jobstats store: keys, defaults, checks, and its reader."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from ccagent.config.duration import Duration, parse_size
from ccagent.config.files import convert
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError, UnparsableError
from ccagent.machine.hostlist import expand
from ccagent.stores.metrics.settings import StoreTlsSettings, parse_toml, read_text, split_address

_LONGEST = 36500 * 86400.0
"""A hundred years. Later times can't be computed."""


class IngestLimitSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[limits]`."""

    body: Annotated[str, Meta(description="largest body of a request, inflated")] = "8MB"
    bodies: Annotated[str, Meta(description="total size of the bodies of concurrent requests")] = (
        "64MB"
    )
    records: Annotated[int, Meta(ge=1, description="maximum number of records of an array")] = (
        20_000
    )
    new_series: Annotated[
        int, Meta(ge=1, description="maximum new series of a sender for a server in an hour")
    ] = 500_000
    connections: Annotated[int, Meta(ge=1, description="maximum number of open connections")] = 1000
    future: Annotated[Duration, Meta(description="maximum time of a record ahead of the clock")] = (
        Duration("1h")
    )
    time: Annotated[Duration, Meta(description="time limit for receiving a request")] = Duration(
        "30s"
    )
    query: Annotated[Duration, Meta(description="time limit for a database query")] = Duration(
        "60s"
    )


class SeriesTableSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[series]`: storage of observations."""

    retention: Annotated[Duration, Meta(description="age at which observations are removed")] = (
        Duration("90d")
    )
    partition: Annotated[
        Duration, Meta(description="length of a partition, or of a chunk of TimescaleDB")
    ] = Duration("1d")
    compress_after: Annotated[
        Duration, Meta(description="TimescaleDB: age of chunks that are compressed")
    ] = Duration("7d")


class ClusterRuleSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[clusters.NAME]`: an entry of any of them belongs to the cluster NAME."""

    nodes: Annotated[tuple[str, ...], Meta(description="NodeRanges of the cluster's nodes")] = ()
    formats: Annotated[
        tuple[str, ...], Meta(description="formats of ids that only this cluster's clients use")
    ] = ()
    file_systems: Annotated[
        tuple[str, ...], Meta(description="file systems that only this cluster uses")
    ] = ()


class JobstatsStoreSettings(Settings, frozen=True, kw_only=True):
    """All keys of the jobstats store's configuration."""

    data: Annotated[str, Meta(description="directory of an embedded PostgreSQL")] = ""
    database: Annotated[str, Meta(description="postgresql:// URL of another PostgreSQL")] = ""
    password_file: Annotated[str, Meta(description="file with the database's password")] = ""
    connections: Annotated[
        int, Meta(ge=2, le=100, description="number of connections to the database for arrays")
    ] = 4
    listen: Annotated[str, Meta(description="ADDRESS:PORT of the HTTP interface")] = (
        "127.0.0.1:8083"
    )
    token_file: Annotated[
        str,
        Meta(description="file with the tokens of senders and readers; empty: no tokens needed"),
    ] = ""
    namespaces_file: Annotated[
        str, Meta(description="file with lines of a format and its UUID; default: in the database")
    ] = ""
    formats: Annotated[
        tuple[str, ...],
        Meta(description="possible values of the clients' jobid_name, tried in order"),
    ] = ("%j:%u:%H", "%j:%u:%h", "%e.%u", "%j")
    first: Annotated[
        Literal["skip", "count"],
        Meta(description="first record of a series: count nothing, or the whole counters"),
    ] = "skip"
    database_user: Annotated[
        str, Meta(description="as root: system user who runs PostgreSQL; empty: owner of data")
    ] = ""
    clusters: Annotated[
        dict[str, ClusterRuleSettings], Meta(description="rules for the cluster of a job, by name")
    ] = {}
    series: SeriesTableSettings = SeriesTableSettings()
    tls: StoreTlsSettings = StoreTlsSettings()
    limits: IngestLimitSettings = IngestLimitSettings()


def check_jobstats_settings(settings: JobstatsStoreSettings, place: str) -> JobstatsStoreSettings:
    """Return valid settings. Raise ConfigurationError with all problems."""
    problems = [*_find_bad_values(settings), *_find_bad_formats(settings)]
    if bool(settings.data) == bool(settings.database):
        problems.append(
            "data, database: exactly one is required: a directory for an embedded PostgreSQL "
            "(--data DIR), or the URL of another PostgreSQL (--database URL)"
        )
    if settings.database and not settings.database.startswith(("postgresql://", "postgres://")):
        problems.append("database: expected postgresql://USER@HOST/NAME")
    if bool(settings.tls.certificate) != bool(settings.tls.key):
        problems.append("tls: certificate and key must be given together")
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
        problems.append("series.partition: expected whole minutes, at least 1m")
    if series.retention.seconds < series.partition.seconds:
        problems.append("series.retention: expected at least one series.partition")
    elif series.retention.seconds > _LONGEST:
        problems.append("series.retention: at most 36500d")
    elif series.retention.seconds / max(series.partition.seconds, 1) > 5000:
        problems.append(
            "series.partition: too short: series.retention has at most 5,000 partitions"
        )
    return problems


def _find_bad_formats(settings: JobstatsStoreSettings) -> list[str]:
    from ccagent.agents.lustre.jobstats.entry import IdFormat

    problems: list[str] = []
    for form in settings.formats:
        try:
            IdFormat(form)
        except ValueError as error:
            problems.append(f"formats: {error}")
    for name, rule in settings.clusters.items():
        key = f"clusters.{name}"
        problems += [
            f"{key}.formats: {form!r} is none of formats"
            for form in rule.formats
            if form not in settings.formats
        ]
        try:
            expand(",".join(rule.nodes))
        except UnparsableError as error:
            problems.append(f"{key}.nodes: {error}")
        if not (rule.nodes or rule.formats or rule.file_systems):
            problems.append(f"{key}: expected nodes, formats or file-systems")
    return problems


def read_jobstats_settings(path: str | None, changes: dict[str, Any]) -> JobstatsStoreSettings:
    """Read a TOML file, if a path is given. Raise ConfigurationError.

    changes: values from the command line; they replace the file's.
    """
    settings = JobstatsStoreSettings()
    if path is not None:
        table = parse_toml(read_text(path), path)
        settings = convert(table, JobstatsStoreSettings, "", place=path)
    # --data replaces a `database` of the file, and --database its `data`.
    if changes.keys() & {"data", "database"}:
        settings = structs.replace(settings, data="", database="")
    return check_jobstats_settings(
        structs.replace(settings, **changes), path if path is not None else "command line"
    )
