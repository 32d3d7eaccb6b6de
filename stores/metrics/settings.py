"""The configuration of the metric store, and its defaults."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from ccagent.config import common_keys
from ccagent.config.duration import Duration, parse_size
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.line_keys import WILDCARD, Aggregation, MetricCatalogue, StoredMetric
from ccagent.stores.metrics.page_settings import WebSettings

AUTO = "auto"

SourceName = Literal["", "rte", "electricity-maps", "watttime", "owid"]

_STREAM = re.compile(r"[^\s.*>/\\]+")
_POSTGRESQL = ("postgresql://", "postgres://")
_SHORTEST = 60.0


class StoredMetricSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[metrics.NAME]`. The name `*` applies to all metrics that are not listed."""

    frequency: Annotated[Duration, Meta(description="time from one value to the next")]
    aggregation: Annotated[
        Aggregation | None,
        Meta(description="aggregation of components into a node's value: sum or avg"),
    ] = None
    tags: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="further tags that distinguish series; default: the tags of the agents"
            " jobio and energy"
        ),
    ] = None


class StoreTlsSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[tls]`."""

    certificate: Annotated[str, Meta(description="file with the certificate chain")] = ""
    key: Annotated[str, Meta(description="file with the private key")] = ""


class CheckpointSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[checkpoints]`, whose files ClusterCockpit's store reads, too."""

    format: Annotated[
        Literal["none", "json", "binary"], Meta(description="none: only the log stores values")
    ] = "none"
    directory: Annotated[
        str, Meta(description="read at the start; written if there is a format")
    ] = ""
    interval: Annotated[Duration, Meta(description="time between two checkpoints")] = Duration(
        "12h"
    )


class ArchiveSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[archive]`."""

    directory: Annotated[
        str,
        Meta(description="directory of Parquet files for values beyond the retention; empty: none"),
    ] = ""


class SubscriptionSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[[nats.subscriptions]]`."""

    subject: Annotated[str, Meta(description="subject, may have wildcards")]
    cluster: Annotated[str, Meta(description="cluster of lines without the tag cluster")] = ""
    queue: Annotated[
        str, Meta(description="queue group: one store of the group gets each message")
    ] = ""
    stream: Annotated[str, Meta(description="JetStream: stream of the subject")] = ""
    durable: Annotated[str, Meta(description="JetStream: name of the consumer")] = "ccagent-store"


class StoreNatsSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[nats]`."""

    url: Annotated[
        str, Meta(description="nats://HOST:PORT, or tls://; several are separated by commas")
    ] = ""
    user: Annotated[str, Meta(description="user name")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    password: Annotated[str, Meta(description="the password itself; a file is safer")] = ""
    token_file: Annotated[str, Meta(description="file with a token")] = ""
    nkey_file: Annotated[str, Meta(description="file with the seed of a user's nkey")] = ""
    creds_file: Annotated[str, Meta(description="file with a user's JWT and seed")] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    subscriptions: Annotated[
        list[SubscriptionSettings], Meta(description="subjects to receive")
    ] = []

    @property
    def allow_cleartext(self) -> bool:
        """Return True: the reference sends passwords unencrypted, too."""
        return True

    @property
    def time_limit(self) -> Duration:
        """Time limit of a login, and of each answer."""
        return Duration("10s")


class StoreLimitSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[limits]`."""

    body: Annotated[str, Meta(description="largest body of a request, inflated")] = "64MB"
    bodies: Annotated[str, Meta(description="total size of the bodies of concurrent requests")] = (
        "1GB"
    )
    values: Annotated[int, Meta(ge=1, description="maximum number of values of a response")] = (
        10_000_000
    )
    series: Annotated[int, Meta(ge=1, description="maximum number of series")] = 10_000_000
    new_series: Annotated[
        int,
        Meta(ge=1, description="maximum new series of a sender for a node in an hour"),
    ] = 20_000
    connections: Annotated[int, Meta(ge=1, description="maximum number of connections")] = 20_000
    future: Annotated[Duration, Meta(description="maximum time of a value ahead of the clock")] = (
        Duration("1h")
    )
    time: Annotated[
        Duration, Meta(description="time limit for a request, and for its response")
    ] = Duration("30s")


class UsageSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[usage]`: factors of emissions, PUE and price for the energy of jobs."""

    zone: Annotated[
        str, Meta(description="zone of the factors, as the file and the source name it: FR, DE")
    ] = ""
    factor_file: Annotated[
        str,
        Meta(description="CSV file with zone,time,g_per_kwh; without a time: the zone's constant"),
    ] = ""
    source: Annotated[
        SourceName, Meta(description="public source of factors that the store asks; empty: none")
    ] = ""
    source_url: Annotated[
        str, Meta(description="URL of the source, if it is not the public one")
    ] = ""
    token_file: Annotated[
        str, Meta(description="file with the source's token; of watttime USER:PASSWORD")
    ] = ""
    every: Annotated[Duration, Meta(description="time between two questions to the source")] = (
        Duration("30m")
    )
    time_limit: Annotated[Duration, Meta(description="time limit of an answer of the source")] = (
        Duration("30s")
    )
    pue: Annotated[
        float, Meta(ge=1, le=10, description="energy of the building per energy of the nodes")
    ] = 1.0
    price: Annotated[float, Meta(ge=0, description="price of a kWh; 0: no cost is shown")] = 0.0
    currency: Annotated[str, Meta(max_length=8, description="currency of the price")] = "EUR"
    common_error: Annotated[
        float,
        Meta(
            ge=0, le=1, description="share by which the sensors of all nodes may err in the same"
            " direction; more nodes do not reduce it"
        ),
    ] = 0.05  # fmt: skip

    def problems(self) -> list[str]:
        """Return the problems of the settings, each with its key."""
        found: list[str] = []
        if (self.factor_file or self.source not in {"", "rte"}) and not self.zone:
            found.append("usage.zone: required with factor-file or source")
        if self.source in {"electricity-maps", "watttime"} and not self.token_file:
            found.append(f"usage.token-file: required by the source {self.source}")
        found += self._problems_of_url()
        if self.every.seconds < _SHORTEST:
            found.append("usage.every: expected at least 60s: sources limit their clients")
        if self.time_limit.seconds <= 0:
            found.append("usage.time-limit: expected more than 0s")
        if not self.currency.isprintable():
            found.append("usage.currency: expected printable characters")
        return found

    def _problems_of_url(self) -> list[str]:
        from ccagent.net.urls import is_loopback, split_url

        if not self.source_url:
            return []
        if not self.source:
            return ["usage.source: required with source-url"]
        try:
            target = split_url(self.source_url)
        except ConfigurationError as error:
            return [f"usage.source-url: {error}"]
        if target.scheme not in {"http", "https"}:
            return ["usage.source-url: expected https://HOST/PATH"]
        if self.token_file and target.scheme == "http" and not is_loopback(target.hostname or ""):
            return ["usage.source-url: a token needs https, except on this machine"]
        return []


class StoreSettings(Settings, frozen=True, kw_only=True):
    """All keys of the metric store's configuration."""

    data: Annotated[str, Meta(description="directory of the log and the table of jobs")] = ""
    jobs_database: Annotated[
        str, Meta(description="postgresql:// URL of a table of jobs that several stores share")
    ] = ""
    jobs_password_file: Annotated[
        str, Meta(description="file with the password of that database")
    ] = ""
    listen: Annotated[str, Meta(description="ADDRESS:PORT of the HTTP interface")] = (
        "127.0.0.1:8082"
    )
    engine: Annotated[
        Literal["memory", "victoria-metrics"], Meta(description="storage of values")
    ] = "memory"
    engine_url: Annotated[str, Meta(description="URL of VictoriaMetrics")] = ""
    sync: Annotated[
        Literal["write", "disk"],
        Meta(description="write: answer after values survive kill -9; disk: a power failure"),
    ] = "write"
    strict: Annotated[
        Literal["", "reference"],
        Meta(description="reference: the first bad line ends its message; no incomplete sums"),
    ] = ""
    retention: Annotated[
        Duration, Meta(description="time that values stay in memory and in the log")
    ] = Duration("48h")
    memory_cap: Annotated[
        str,
        Meta(
            description="memory of all values; auto: half of the memory of the machine or the"
            " control group; 0B: no limit"
        ),
    ] = AUTO
    disk_cap: Annotated[str, Meta(description="size of the log; 0B: no limit")] = "0B"
    jwt_public_key: Annotated[
        str, Meta(description="Ed25519 public key in base64; empty: no tokens needed")
    ] = ""
    backend_url: Annotated[
        str, Meta(description="URL of cc-backend; values of running jobs are kept longer")
    ] = ""
    metrics: Annotated[
        dict[str, StoredMetricSettings], Meta(description="metrics that the store accepts")
    ] = field(default_factory=dict[str, StoredMetricSettings])
    tls: StoreTlsSettings = StoreTlsSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    archive: ArchiveSettings = ArchiveSettings()
    nats: StoreNatsSettings = StoreNatsSettings()
    limits: StoreLimitSettings = StoreLimitSettings()
    web: WebSettings = WebSettings()
    usage: UsageSettings = UsageSettings()

    @property
    def is_reference(self) -> bool:
        """Return whether the store does as the reference where that loses or refuses values."""
        return self.strict == "reference"

    def oldest(self) -> int | None:
        """Return the maximum age of a new value in s; None: no limit, as in the reference.

        An engine applies a separate retention.
        """
        if self.is_reference or self.engine != "memory":
            return None
        return int(self.retention.seconds)

    def catalogue(self) -> MetricCatalogue:
        """Return the metrics. As in the reference, `strict` has no further tags."""
        tags: tuple[str, ...] | None = () if self.is_reference else None
        return MetricCatalogue(
            {
                name: StoredMetric(
                    int(one.frequency.seconds),
                    one.aggregation,
                    tags if one.tags is None else one.tags,
                )
                for name, one in self.metrics.items()
            }
        )


def check_settings(settings: StoreSettings, place: str) -> StoreSettings:
    """Return valid settings. Raise ConfigurationError with all problems."""
    problems = [*_find_bad_values(settings), *_find_contradictions(settings)]
    if problems:
        raise ConfigurationError(*(f"{place}: {problem}" for problem in problems))
    if not settings.metrics:
        every = StoredMetricSettings(frequency=Duration("60s"), aggregation="avg")
        settings = structs.replace(settings, metrics={WILDCARD: every})
    return settings


def _find_bad_values(settings: StoreSettings) -> list[str]:
    problems: list[str] = []
    for name, one in settings.metrics.items():
        if one.frequency.seconds < 1 or one.frequency.seconds % 1:
            problems.append(
                f"metrics.{name}.frequency: expected a whole number of seconds, at least 1"
            )
    for key, written in (
        ("memory-cap", "0B" if settings.memory_cap == AUTO else settings.memory_cap),
        ("disk-cap", settings.disk_cap),
        ("limits.body", settings.limits.body), ("limits.bodies", settings.limits.bodies),
    ):  # fmt: skip
        try:
            parse_size(written)
        except ValueError as error:
            problems.append(f"{key}: {error}")
    for key, duration in (
        ("retention", settings.retention), ("checkpoints.interval", settings.checkpoints.interval),
        ("limits.time", settings.limits.time),
    ):  # fmt: skip
        if duration.seconds < 1:
            problems.append(f"{key}: expected at least 1s")
    for key, address in (("listen", settings.listen), ("web.listen", settings.web.listen or ":0")):
        try:
            split_address(address)
        except ValueError as error:
            problems.append(f"{key}: {error}")
    if settings.backend_url and not settings.backend_url.startswith(("http://", "https://")):
        problems.append("backend-url: expected http://HOST:PORT")
    return [*problems, *_find_bad_subscriptions(settings)]


def _find_bad_subscriptions(settings: StoreSettings) -> list[str]:
    """Return problems that NATS' protocol does not permit."""
    problems: list[str] = []
    for number, one in enumerate(settings.nats.subscriptions, 1):
        place = f"nats.subscriptions {number}"
        if not one.subject or len((one.subject + one.queue).split()) > 1:
            problems.append(
                f"{place}: subject is required; subject and queue must not contain blanks"
            )
        if one.stream and not (_STREAM.fullmatch(one.stream) and _STREAM.fullmatch(one.durable)):
            problems.append(f"{place}: stream and durable must not contain blanks, dots, * and >")
    return problems


def _find_contradictions(settings: StoreSettings) -> list[str]:
    problems: list[str] = []
    if bool(settings.tls.certificate) != bool(settings.tls.key):
        problems.append("tls: certificate and key must be given together")
    if settings.checkpoints.format != "none" and not settings.checkpoints.directory:
        problems.append("checkpoints.directory: required by checkpoints.format")
    if settings.nats.subscriptions and not settings.nats.url:
        problems.append("nats.url: required by nats.subscriptions")
    if (settings.engine == "victoria-metrics") != bool(settings.engine_url):
        problems.append("engine-url: required by the engine victoria-metrics, and only by it")
    if settings.web.listen and settings.engine != "memory":
        problems.append("web.listen: only the engine memory has pages")
    if settings.web.listen and settings.jobs_database:
        problems.append("web.listen: the pages need the embedded table of jobs, not jobs-database")
    if settings.jobs_database and not settings.jobs_database.startswith(_POSTGRESQL):
        problems.append("jobs-database: expected postgresql://USER@HOST/NAME")
    problems += settings.web.problems() + settings.usage.problems()
    if not settings.data and settings.engine == "memory":
        problems.append("data: required as directory of the log; or --data DIR")
    return problems


def read_text(path: str) -> str:
    """Return the text of a configuration. Raise ConfigurationError."""
    try:
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not text in UTF-8") from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raise ConfigurationError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # invalid, a number too long, nested too deep
        raise ConfigurationError(f"{place}: {error}") from error


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; host empty: all addresses. Raise ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return host.strip("[]"), int(port)


def log_directory(settings: StoreSettings) -> str:
    """Return the directory of the log."""
    return os.path.join(settings.data, "log")
