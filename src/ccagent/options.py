"""Options of the command line, laid over what a configuration file says."""

from __future__ import annotations

from typing import Any

from ccagent.errors import ConfigurationError
from ccagent.settings import as_table


def for_agent(table: dict[str, Any], agent: str) -> dict[str, Any]:
    """Leave only one agent's table; if it is none, it will be refused."""
    return table | {"agents": {agent: as_table(table.get("agents")).get(agent, {})}}


def with_values(table: dict[str, Any], assignments: tuple[str, ...], agent: str) -> dict[str, Any]:
    """Set keys of an agent's table from the command line: `rollup=true`, `every=30s`.

    A value is TOML where it can be read as that, else a string.
    """
    if not assignments:
        return table
    import tomllib

    agents = as_table(table.get("agents"))
    own = dict(as_table(agents.get(agent)))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--set {assignment}: expected KEY=VALUE")
        try:
            own[key] = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, KeyError):
            own[key] = text
    return table | {"agents": agents | {agent: own}}


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
        table["sinks"] = {f"--sink {url}": {"url": url} for url in urls}
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
