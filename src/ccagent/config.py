"""The configuration file: strict TOML, every key checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ccagent.agent import AgentSettings
from ccagent.config_files import read_files
from ccagent.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.message import FORMATS, Format
from ccagent.node import checked_name
from ccagent.registry import agent_class, transport_class
from ccagent.settings import Settings, as_table, convert, nearest, refuse_nul
from ccagent.transports.base import SinkSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agent import Agent
    from ccagent.config_files import Files
    from ccagent.transports.base import Transport

T = TypeVar("T")

_TABLES = ("agents", "outbox", "sinks")

DEFAULT_PATH = "/etc/ccagent/ccagent.toml"
"""What `ccagent run` reads when it isn't told otherwise."""


class GlobalSettings(Settings, frozen=True, kw_only=True):
    """The keys outside of all tables."""

    cluster: Annotated[
        str,
        Meta(description="name of the cluster in every record; empty: the host's domain, or local"),
    ] = ""
    hostname: Annotated[
        str, Meta(description="name of this node in every record; empty: its own host name")
    ] = ""
    lock_directory: Annotated[
        str, Meta(description="where the daemon keeps a lock, so that only one runs; empty: none")
    ] = ""
    status_socket: Annotated[
        str,
        Meta(description="where `ccagent status` asks the daemon; only if its directory exists"),
    ] = "/run/ccagent/status.sock"
    topic_prefix: Annotated[
        str, Meta(description="stands before the cluster in topics: 'test' for test.CLUSTER.sample")
    ] = ""


class OutboxSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [outbox]."""

    directory: Annotated[
        str, Meta(description="where messages wait; empty: in memory, lost with the process")
    ] = ""
    memory: Annotated[bool, Meta(description="wait in memory although there is a directory")] = (
        False
    )
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            description="bytes per sink, 64 MiB at most in memory; beyond, the oldest are dropped",
        ),
    ] = 256 * 1024 * 1024
    max_age: Annotated[Duration, Meta(description="older messages are dropped")] = Duration("7d")
    durability: Annotated[
        Literal["process", "power"],
        Meta(description="what a stored message survives: the end of the process, or of the power"),
    ] = "process"


class Configuration(msgspec.Struct, frozen=True):
    """A checked configuration: the settings of agents and sinks by name."""

    place: str
    settings: GlobalSettings
    outbox: OutboxSettings
    agents: dict[str, AgentSettings]
    sinks: dict[str, SinkSettings]

    def sinks_of(self, agent: str) -> list[str]:
        """Give the names of the sinks that an agent's records go to: its own, else all."""
        return list(self.agents[agent].sinks) or list(self.sinks)

    def formats_of(self, agent: str) -> frozenset[Format]:
        """Give the formats that the sinks of an agent want."""
        return frozenset(self.sinks[sink].format for sink in self.sinks_of(agent))


def load(path: str) -> Configuration:
    """Read and check a file, with `conf.d` beside it.

    Raises ConfigurationError naming file, key and reason.
    """
    files = read_files(path)
    return check_files(files, files.table)


def check_files(files: Files, table: dict[str, Any]) -> Configuration:
    """Check a table that comes from files, so that errors name the one where a key stands."""
    try:
        return check(table, files.paths[0])
    except ConfigurationError as error:
        raise ConfigurationError(files.named(str(error))) from None


def check(table: dict[str, Any], place: str) -> Configuration:
    """Check a whole configuration; `place` is what its errors call it."""
    refuse_nul(table, "", place)
    top = {key: value for key, value in table.items() if key not in _TABLES}
    known = [*GlobalSettings.__struct_encode_fields__, *_TABLES]
    for key in top:
        if key not in known:
            raise ConfigurationError(f"{place}: {key}: unknown key{nearest(key, known)}")
    settings = convert(top, GlobalSettings, "", place=place)
    for what, name in (
        ("cluster", settings.cluster),
        ("hostname", settings.hostname),
        ("topic-prefix", settings.topic_prefix),
    ):
        if name:
            _named(place, "", checked_name, what, name)
    sinks = {
        name: check_sink(value, name, place)
        for name, value in _tables(table, "sinks", place).items()
    }
    agents = {
        name: _check_agent(value, name, sinks, place)
        for name, value in _tables(table, "agents", place).items()
    }
    if settings.status_socket and not settings.status_socket.startswith("/"):
        raise ConfigurationError(f"{place}: status-socket: an absolute path is needed")
    outbox = convert(table.get("outbox", {}), OutboxSettings, "outbox", place=place)
    if outbox.directory and not outbox.directory.startswith("/"):
        raise ConfigurationError(f"{place}: outbox.directory: an absolute path is needed")
    configuration = Configuration(place, settings, outbox, agents, sinks)
    for name in agents:
        _check_formats(configuration, name)
    return configuration


def check_sink(table: object, name: str, place: str) -> SinkSettings:
    """Check the table of one sink, with the keys that its transport knows."""
    where = name if name.startswith("--") else f"sinks.{name}"
    url = as_table(table).get("url")
    if not isinstance(url, str):
        raise ConfigurationError(f"{place}: {where}.url: a sink needs a URL, such as 'stdout:'")
    transport = _named(place, where, transport_class, url)
    settings = convert(table, transport.Settings, where, place=place)
    _named(place, where, transport, settings)
    return settings


def _check_agent(
    table: object, name: str, sinks: dict[str, SinkSettings], place: str
) -> AgentSettings:
    where = f"agents.{name}"
    agent = _named(place, where, agent_class, name)
    settings = convert(table, agent.Settings, where, place=place)
    for sink in settings.sinks:
        if sink not in sinks:
            raise ConfigurationError(
                f"{place}: {where}.sinks: there is no [sinks.{sink}]{nearest(sink, list(sinks))}"
            )
    _named(place, "", agent, settings, frozenset(FORMATS))
    return settings


def _check_formats(configuration: Configuration, name: str) -> None:
    agent = agent_class(name)
    for sink in configuration.sinks_of(name):
        wanted = configuration.sinks[sink].format
        if wanted not in agent.formats:
            raise ConfigurationError(
                f"{configuration.place}: agents.{name}.sinks: sink {sink!r} wants format "
                f"{wanted!r}, which {name} has not; it has {', '.join(sorted(agent.formats))}"
            )


def _tables(table: dict[str, Any], key: str, place: str) -> dict[str, object]:
    value = table.get(key, {})
    if value and not as_table(value):
        raise ConfigurationError(f"{place}: {key}: expected tables [{key}.NAME]")
    return as_table(value)


def _named(place: str, where: str, check: Callable[..., T], *values: object) -> T:
    """Run a check and put file and key before what it complains about."""
    try:
        return check(*values)
    except ConfigurationError as error:
        prefix = f"{place}: {where}: " if where else f"{place}: "
        raise ConfigurationError(f"{prefix}{error}") from None


def build_agent(configuration: Configuration, name: str) -> Agent[Any]:
    """Make an agent of a checked configuration, for the formats that its sinks want."""
    return agent_class(name)(configuration.agents[name], configuration.formats_of(name))


def build_transport(settings: SinkSettings) -> Transport:
    """Make the transport of a checked sink."""
    return transport_class(settings.url)(settings)
