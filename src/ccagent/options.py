"""Options of the command line, laid over what a configuration file says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError
from ccagent.settings import as_table

if TYPE_CHECKING:
    from collections.abc import Iterable


def for_agent(table: dict[str, Any], agent: str) -> dict[str, Any]:
    """Leave only one agent's table; if it is none, it will be refused."""
    return table | {"agents": {agent: as_table(table.get("agents")).get(agent, {})}}


def with_values(
    table: dict[str, Any], kind: str, names: Iterable[str], assignments: tuple[str, ...]
) -> dict[str, Any]:
    """Set keys of the tables [KIND.NAME] from the command line: `rollup=true`, `every=30s`.

    A value is TOML where it can be read as that, else a string.
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


def sinks_of(urls: Iterable[str]) -> dict[str, str]:
    """Name the sinks of the command line: by their URLs, without what could be secret in them."""
    named: dict[str, str] = {}
    for url in urls:
        scheme, slashes, rest = url.partition("//")
        host = rest.partition("?")[0].rpartition("@")[2]
        name = f"--sink {scheme}{slashes}{host}"
        while named.get(name, url) != url:
            name += "'"
        named[name] = url
    return named


def with_options(
    table: dict[str, Any], cluster: str | None, urls: tuple[str, ...], form: str | None
) -> dict[str, Any]:
    """Let options of the command line stand in for what the file says.

    `urls` replace all sinks; where there are none at all, it is stdout.
    """
    table = dict(table)
    if cluster is not None:
        table["cluster"] = cluster
    if urls:
        table["sinks"] = {name: {"url": url} for name, url in sinks_of(urls).items()}
        table["agents"] = {
            name: {key: value for key, value in as_table(agent).items() if key != "sinks"}
            for name, agent in as_table(table.get("agents")).items()
        }
    elif not table.get("sinks"):
        table["sinks"] = {"stdout": {"url": "stdout:"}}
    if form is not None:
        table["sinks"] = {
            name: as_table(sink) | {"format": form}
            for name, sink in as_table(table["sinks"]).items()
        }
    return table
