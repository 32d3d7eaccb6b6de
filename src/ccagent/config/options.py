"""The options of all commands. They override the configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.config.settings import as_table, is_table
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.config.configuration import Configuration
    from ccagent.config.files import Files


class Options(NamedTuple):
    """Values of the options `--config`, `--no-config`, `--cluster`, `--sink` and so on."""

    path: str | None = None
    is_without_file: bool = False
    cluster: str | None = None
    sinks: tuple[str, ...] = ()
    sink_values: tuple[str, ...] = ()
    form: str | None = None


def load_configuration(
    options: Options,
    *,
    agent: str = "",
    assignments: tuple[str, ...] = (),
    needs_file: bool = False,
    adapt: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Configuration:
    """Read the configuration file, and override keys by options.

    agent: keep only the configuration of this agent. Its samples go to the sinks of a file only if
    `--config` names this file: a command in a terminal must not send to the site's receivers by
    mistake. needs_file: raise ConfigurationError if the default file is missing. adapt: changes the
    table of the file, as the overrides of the control service do in the daemon.
    """
    from ccagent.config.configuration import check_files

    files = _files(options, needs_file=needs_file)
    table = files.table
    if adapt is not None:
        table = adapt(table)
    if agent:
        # A value that is not a table is refused later.
        own = {agent: as_table(table.get("agents")).get(agent, {})}
        table = with_values(table | {"agents": own}, "agents", [agent], assignments)
        if options.path is None:
            table = without_sinks(table)
    form = options.form if options.form != "table" else None
    form = form or (_only_format(agent) if agent and not table.get("sinks") else None)
    if agent or table.get("sinks") or options.sinks or not _work_without_sinks(table):
        table = with_options(table, options.cluster, options.sinks, form)
    elif options.cluster is not None:
        table = table | {"cluster": options.cluster}
    if options.sink_values:
        if not options.sinks:
            raise ConfigurationError("--sink-set: is for sinks given by --sink")
        table = with_values(table, "sinks", table["sinks"], options.sink_values)
    return check_files(files, table)


def _files(options: Options, *, needs_file: bool) -> Files:
    from ccagent.config.files import COMMAND_LINE, DEFAULT_PATH, Files, read_default, read_files

    if options.is_without_file:
        if options.path is not None:
            raise ConfigurationError("--config and --no-config exclude each other")
        return Files(COMMAND_LINE)
    if options.path == "":
        raise ConfigurationError("--config: the name of a file is needed")
    if options.path is not None:
        return read_files(options.path)
    return read_files(DEFAULT_PATH) if needs_file else read_default()


def _only_format(agent: str) -> str | None:
    """Return the format of an agent without the format `sonar`, else None."""
    from ccagent.registry import load_agent

    formats: frozenset[str] = load_agent(agent).formats
    return None if "sonar" in formats else min(formats)


def _work_without_sinks(table: dict[str, Any]) -> bool:
    """Return whether no agent of a table needs a sink, or only the exporter is configured."""
    from ccagent.registry import AGENTS, load_agent

    agents = as_table(table.get("agents"))
    if not agents and "exporter" in table:
        return True
    return bool(agents) and all(
        name in AGENTS and load_agent(name).has_own_peer(as_table(agents[name])) for name in agents
    )


def without_sinks(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table without its sinks, and without their names in the agents' tables."""
    agents = {
        name: {key: value for key, value in as_table(agent).items() if key != "sinks"}
        if is_table(agent)
        else agent
        for name, agent in as_table(table.get("agents")).items()
    }
    return table | {"sinks": {}, "agents": agents}


def with_values(
    table: dict[str, Any], kind: str, names: Iterable[str], assignments: tuple[str, ...]
) -> dict[str, Any]:
    """Set keys of the tables [KIND.NAME] from the command line: `rollup=true`, `every=30s`.

    A value is parsed as TOML if possible, else it is a string.
    """
    if not assignments:
        return table
    import tomllib

    values: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{assignment}: expected KEY=VALUE")
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, KeyError, RecursionError):
            values[key] = text
    tables = as_table(table.get(kind))
    changed = {name: as_table(tables.get(name)) | values for name in names}
    return table | {kind: tables | changed}


def public_url(url: str) -> str:
    """Return a URL without login and query: both may contain secrets."""
    scheme, slashes, rest = url.partition("//")
    host = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}{slashes}{host}"


def sinks_of(urls: Iterable[str]) -> dict[str, str]:
    """Return sinks for the URLs of the command line, by URL without secrets."""
    named: dict[str, str] = {}
    for url in urls:
        name = f"--sink {public_url(url)}"
        while named.get(name, url) != url:
            name += "'"
        named[name] = url
    return named


def with_options(
    table: dict[str, Any], cluster: str | None, urls: tuple[str, ...], form: str | None
) -> dict[str, Any]:
    """Replace keys of the file by options of the command line.

    `urls` replace all sinks. Without any sink the sink is stdout.
    """
    table = dict(table)
    if cluster is not None:
        table["cluster"] = cluster
    if urls:
        named = {name: {"url": url} for name, url in sinks_of(urls).items()}
        table = without_sinks(table) | {"sinks": named}
    elif not table.get("sinks"):
        table["sinks"] = {"stdout": {"url": "stdout:"}}
    if form is not None:
        table["sinks"] = {
            name: as_table(sink) | {"format": form}
            for name, sink in as_table(table["sinks"]).items()
        }
    return table
