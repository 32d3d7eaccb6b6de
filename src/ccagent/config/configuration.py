"""The configuration: strict TOML, with every key checked before the start.

A service reads its own table only: agents and sinks in its file are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from ccagent import log
from ccagent.config.common_keys import AgentSettings, SinkSettings
from ccagent.config.duration import Duration
from ccagent.config.files import (
    DEFAULT_PATH,
    Files,
    convert,
    place_errors,
    read_default,
    read_files,
)
from ccagent.config.settings import Problems, Settings, as_list, as_table, find_unusable_texts
from ccagent.errors import ConfigurationError, KeyProblem, nearest
from ccagent.log import LogFormat, LogLevel
from ccagent.machine.node import Node, check_name
from ccagent.records.message import FORMATS, Format
from ccagent.registry import TABLES, load_agent, load_table, load_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.clock import Clock

S = TypeVar("S", bound=Settings)

_TABLES = ("agents", *TABLES, "outbox", "sinks")


class GlobalSettings(Settings, frozen=True, kw_only=True):
    """The keys outside of all tables."""

    cluster: Annotated[
        str,
        Meta(description="name of the cluster in every record; empty: the host's domain, or local"),
    ] = ""
    hostname: Annotated[
        str, Meta(description="name of this node in every record; empty: its host name")
    ] = ""
    hostname_only: Annotated[
        bool, Meta(description="cut the domain from the host name; not from the key hostname")
    ] = True
    lock_directory: Annotated[
        str, Meta(description="directory of the lock that permits only one daemon; empty: no lock")
    ] = ""
    log_format: Annotated[
        LogFormat,
        Meta(
            description="format of the log on stderr; auto: journal (with priorities) under "
            "systemd, else text"
        ),
    ] = "auto"
    log_level: Annotated[LogLevel, Meta(description="log this level and more serious ones")] = (
        "warning"
    )
    status_socket: Annotated[
        str, Meta(description="socket for `ccagent status`; made only if its directory exists")
    ] = "/run/ccagent/status.sock"
    topic_prefix: Annotated[
        str, Meta(description="prefix of the cluster in topics: 'test' for test.CLUSTER.sample")
    ] = ""

    def make_node(self, clock: Clock | None = None) -> Node:
        """Return this machine with the names for its records. Raise ConfigurationError."""
        return Node(
            hostname=self.hostname,
            cluster=self.cluster,
            hostname_only=self.hostname_only,
            clock=clock,
        )


class OutboxSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [outbox]."""

    directory: Annotated[
        str, Meta(description="directory of the queues; empty: in memory, lost with the process")
    ] = ""
    memory: Annotated[bool, Meta(description="queue in memory, although directory is set")] = False
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            description="bytes per sink, in memory at most 64 MiB; above, the oldest are dropped",
        ),
    ] = 256 * 1024 * 1024
    max_age: Annotated[Duration, Meta(description="older messages are dropped")] = Duration("7d")
    when_full: Annotated[
        Literal["drop-oldest", "refuse-new"],
        Meta(description="messages that are lost if the queue is full"),
    ] = "drop-oldest"
    durability: Annotated[
        Literal["process", "power"],
        Meta(description="stored messages survive the end of the process, or also a power failure"),
    ] = "process"


class Configuration(msgspec.Struct, frozen=True):
    """A checked configuration: the settings of agents and sinks by name.

    tables: settings of the optional tables that it has, such as [exporter]; see `table`.
    """

    place: str
    settings: GlobalSettings
    outbox: OutboxSettings
    agents: dict[str, AgentSettings]
    sinks: dict[str, SinkSettings]
    tables: dict[str, Settings] = {}

    def table(self, kind: type[S]) -> S | None:
        """Return the optional table with a type of settings; None without it."""
        return next((table for table in self.tables.values() if isinstance(table, kind)), None)

    def sinks_of(self, agent: str) -> list[str]:
        """Return the names of the sinks for an agent's records."""
        return _sinks_of(agent, self.agents[agent], self.sinks)

    @property
    def agents_without_cadence(self) -> list[str]:
        """The agents that a daemon never runs: they have neither `every` nor `on-startup`."""
        return [
            name
            for name, settings in self.agents.items()
            if settings.every is None and not settings.on_startup
        ]

    def formats_of(self, agent: str) -> frozenset[Format]:
        """Return the formats of the sinks of an agent."""
        return frozenset(self.sinks[sink].format for sink in self.sinks_of(agent))

    def receivers_of(self, agent: str) -> frozenset[str]:
        """Return the receivers of an agent's envelopes; empty text: any program."""
        sinks = (self.sinks[sink] for sink in self.sinks_of(agent))
        return frozenset(sink.receiver for sink in sinks if sink.format == "sonar")


def load(path: str) -> Configuration:
    """Read and check a file and its `conf.d`.

    Raise ConfigurationError with file, line, key and reason of each problem.
    """
    files = read_files(path)
    return check_files(files, files.table)


def check_files(files: Files, table: dict[str, Any]) -> Configuration:
    """Check a table from files. Errors contain file and line of a key."""
    problems = Problems(files.paths[0])
    problems.found += files.problems
    configuration = None
    if files.is_complete:
        configuration = problems.attempt(check, table, files.paths[0])
    if configuration is None or problems.found:
        raise ConfigurationError(*files.locate(problems.found))
    return configuration


def check(table: dict[str, Any], place: str) -> Configuration:
    """Check a whole configuration. place: its name in errors.

    Raise ConfigurationError with all problems.
    """
    problems = Problems(place)
    for key, reason in find_unusable_texts(table, ""):
        problems.add(key, reason)
    settings = problems.attempt(_check_global, table, place)
    outbox = problems.attempt(_check_outbox, table, place)
    sink_tables = problems.attempt(_tables, table, "sinks", place) or {}
    sinks = {
        name: problems.attempt(check_sink, value, name, place)
        for name, value in sink_tables.items()
    }
    agent_tables = problems.attempt(_tables, table, "agents", place) or {}
    agents = {
        name: problems.attempt(_check_agent, value, name, [*sinks], place)
        for name, value in agent_tables.items()
    }
    known_sinks = {name: sink for name, sink in sinks.items() if sink is not None}
    known_agents = {name: agent for name, agent in agents.items() if agent is not None}
    for name, agent in known_agents.items():
        _check_formats(name, agent, known_sinks, problems)
    tables = {
        name: problems.attempt(_check_table, table[name], name, place)
        for name in TABLES
        if name in table
    }
    problems.raise_found()
    return Configuration(
        place,
        settings or GlobalSettings(),
        outbox or OutboxSettings(),
        {name: agent.beside(known_agents) for name, agent in known_agents.items()},
        known_sinks,
        {name: checked for name, checked in tables.items() if checked is not None},
    )


def _sinks_of(name: str, settings: AgentSettings, sinks: dict[str, SinkSettings]) -> list[str]:
    """Return the sinks in an agent's key `sinks`; without that all sinks with its formats."""
    formats = load_agent(name).formats
    return list(settings.sinks) or [key for key, sink in sinks.items() if sink.format in formats]


def _check_global(table: dict[str, Any], place: str) -> GlobalSettings:
    """Check the keys outside of all tables."""
    top = {key: value for key, value in table.items() if key not in _TABLES}
    known = [*GlobalSettings.__struct_encode_fields__, *_TABLES]
    problems = Problems(place)
    for key in [*top]:
        if key not in known:
            problems.add(key, f"unknown key{nearest(key, known)}")
            del top[key]
    settings = problems.attempt(convert, top, GlobalSettings, "", place=place)
    if settings is not None:
        for key, name in (
            ("cluster", settings.cluster),
            ("hostname", settings.hostname),
            ("topic-prefix", settings.topic_prefix),
        ):
            if name:
                problems.attempt(place_errors, place, "", check_name, key, name)
        if settings.status_socket and not settings.status_socket.startswith("/"):
            problems.add("status-socket", "an absolute path is needed")
    problems.raise_found()
    return settings or GlobalSettings()


def _check_outbox(table: dict[str, Any], place: str) -> OutboxSettings:
    outbox = convert(table.get("outbox", {}), OutboxSettings, "outbox", place=place)
    if outbox.directory and not outbox.directory.startswith("/"):
        problem = KeyProblem(place, "outbox.directory", "an absolute path is needed")
        raise ConfigurationError(problem)
    return outbox


def check_sink(table: object, name: str, place: str) -> SinkSettings:
    """Check the table of one sink against the keys of its transport."""
    where = name if name.startswith("--") else f"sinks.{name}"
    url = as_table(table).get("url")
    if not isinstance(url, str):
        problem = KeyProblem(place, f"{where}.url", "a sink needs a URL, such as 'stdout:'")
        raise ConfigurationError(problem)
    transport = place_errors(place, f"{where}.url", load_transport, url)
    settings: SinkSettings = convert(table, transport.Settings, where, place=place)
    place_errors(place, where, transport, settings)
    return settings


def _check_agent(table: object, name: str, sinks: list[str], place: str) -> AgentSettings:
    where = f"agents.{name}"
    agent = place_errors(place, where, load_agent, name)
    kind: type[AgentSettings] = agent.Settings
    problems = Problems(place)
    settings = problems.attempt(convert, table, kind, where, place=place)
    named = settings.sinks if settings is not None else as_list(as_table(table).get("sinks"))
    for sink in named:
        if isinstance(sink, str) and sink not in sinks:
            problems.add(f"{where}.sinks", f"there is no [sinks.{sink}]{nearest(sink, sinks)}")
    if settings is not None:
        problems.attempt(place_errors, place, "", agent, settings, frozenset(FORMATS))
    problems.raise_found()
    return settings or kind()


def _check_formats(
    name: str, settings: AgentSettings, sinks: dict[str, SinkSettings], problems: Problems
) -> None:
    """Check that an agent has the formats of its sinks; without key `sinks` that of any sink."""
    formats = load_agent(name).formats
    for sink in settings.sinks or ([] if _sinks_of(name, settings, sinks) else sinks):
        wanted = sinks[sink].format if sink in sinks else None
        if wanted is not None and wanted not in formats:
            problems.add(
                f"agents.{name}.sinks",
                f"sink {sink!r} needs format {wanted!r}, but {name} has only "
                f"{', '.join(sorted(formats))}",
            )


def _check_table(table: object, name: str, place: str) -> Settings:
    """Check an optional table."""
    kind, check_more = load_table(name)
    settings: Settings = convert(table, kind, name, place=place)
    place_errors(place, "", check_more, settings)
    return settings


def _tables(table: dict[str, Any], key: str, place: str) -> dict[str, object]:
    value = table.get(key, {})
    if value and not as_table(value):
        raise ConfigurationError(KeyProblem(place, key, f"expected tables [{key}.NAME]"))
    return as_table(value)


class ServiceSetup(NamedTuple, Generic[S]):
    """The settings of a service from a file. table: of the whole file.

    hostname_only: without the domain of the host's name.
    """

    path: str
    settings: S
    table: dict[str, Any]
    hostname_only: bool = True

    def make_node(self) -> Node:
        """Return the node of this machine, with its configured names."""
        return Node(
            hostname=str(self.table.get("hostname", "")),
            cluster=str(self.table.get("cluster", "")),
            hostname_only=self.hostname_only,
        )


def load_service(
    path: str | None,
    name: str,
    kind: type[S],
    check: Callable[[S], object],
    *,
    needs_table: bool = True,
) -> ServiceSetup[S]:
    """Read and check the table `name`; without `path` of the default file.

    needs_table: file and table must exist. Raise ConfigurationError with file, line, key, reason.
    """
    file = path or DEFAULT_PATH
    files = read_default() if path is None and not needs_table else read_files(file)
    if files.problems:
        raise ConfigurationError(*files.problems)
    if name not in files.table and needs_table:
        raise ConfigurationError(f"{file}: no table [{name}]: nothing to do")
    try:
        settings = convert(files.table.get(name, {}), kind, name, place=file)
        place_errors(file, "", check, settings)
    except ConfigurationError as error:
        raise ConfigurationError(*files.locate(error.problems)) from error
    return ServiceSetup(file, settings, files.table, files.table.get("hostname-only") is not False)


def keep_log(load: Callable[[], ServiceSetup[S]], verbosity: int) -> Callable[[], ServiceSetup[S]]:
    """Configure the log; return `load` with the log configured by its file each time."""
    log.configure(verbosity)

    def load_with_log() -> ServiceSetup[S]:
        setup = load()
        log.configure(verbosity, *log.read_choice(setup.table))
        return setup

    return load_with_log
