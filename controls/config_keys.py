"""Settable keys of ccagent's configuration: cadences, and disabled agents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.config.duration import Cadence
from ccagent.config.settings import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.settings import AllowSettings

OFF = "agents-off"
"""The key of the overrides with the list of disabled agents."""

_KEY = re.compile(r"config\.agents\.([a-z][a-z0-9_-]{0,63})(\.every)?", re.ASCII)


def find_wrong_key(name: str, rule: AllowSettings) -> Iterator[str]:
    """Yield the problems of a rule for a key of the configuration."""
    found = _KEY.fullmatch(name)
    if found is None:
        yield "of the configuration only config.agents.NAME and config.agents.NAME.every can be set"
        return
    if rule.min is not None or rule.max is not None:
        yield "min and max are for numbers: list values"
    if found[2]:
        if not rule.values:
            yield 'values are needed, such as ["10s", "1m"]'
        for value in rule.values:
            try:
                Cadence(value)
            except ValueError as error:
                yield str(error)


def check_overrides(overrides: dict[str, Any]) -> None:
    """Raise ValueError unless overrides have the form returned by `with_key`."""
    try:
        msgspec.convert(overrides.get("agents", {}), dict[str, dict[str, Any]])
        msgspec.convert(overrides.get(OFF, []), list[str])
    except msgspec.ValidationError as error:
        raise ValueError(f"expected agents as tables, and {OFF} as a list of names") from error


def split_key(name: str) -> tuple[str, bool]:
    """Return the agent in a control's name, and whether the control is its cadence."""
    found = _KEY.fullmatch(name)
    if found is None:
        raise ValueError(name)
    return found[1], bool(found[2])


def read_key(table: dict[str, Any], overrides: dict[str, Any], name: str) -> str:
    """Return the value of a key in effect; "" if it has none."""
    agent, is_cadence = split_key(name)
    configured = as_table(table.get("agents")).get(agent)
    over = as_table(overrides.get("agents")).get(agent)
    if is_cadence:
        value = as_table(over).get("every", as_table(configured).get("every", ""))
        return str(value)
    is_off = agent in overrides.get(OFF, ())
    return "0" if is_off or (configured is None and over is None) else "1"


def with_key(
    table: dict[str, Any], overrides: dict[str, Any], name: str, value: str
) -> dict[str, Any]:
    """Return overrides with a new value of a key. A value equal to the files' is omitted."""
    agent, is_cadence = split_key(name)
    agents = {key: dict(as_table(each)) for key, each in as_table(overrides.get("agents")).items()}
    off = [each for each in overrides.get(OFF, ()) if each != agent]
    configured = as_table(table.get("agents"))
    over = agents.pop(agent, {})
    if is_cadence:
        off = list(overrides.get(OFF, ()))
        over.pop("every", None)
        if value and as_table(configured.get(agent)).get("every") != value:
            over["every"] = value
        if over or agent not in configured:
            agents[agent] = over
    elif value == "1":
        if over or agent not in configured:
            agents[agent] = over
    elif agent in configured:
        off.append(agent)
        if over:
            agents[agent] = over
    return {"agents": agents, OFF: sorted(off)}


def with_overrides(table: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the table of the files, updated with the overrides."""
    agents = dict(as_table(table.get("agents")))
    for name, over in as_table(overrides.get("agents")).items():
        agents[name] = as_table(agents.get(name)) | as_table(over)
    for name in overrides.get(OFF, ()):
        agents.pop(name, None)
    return table | {"agents": agents}
