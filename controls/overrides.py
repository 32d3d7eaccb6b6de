"""The keys set by `config` controls, and their file. They override the configuration files.

The file is below /run. A boot deletes it, and the configuration files are in effect again.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ccagent.config.settings import as_table
from ccagent.controls.settings import CONFIG_KEY, OVERRIDES
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.machine.node import read_trusted
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file

_LARGEST = 256 * 1024


class Overrides(msgspec.Struct, frozen=True, rename="kebab"):
    """The content of the file: keys of agents, and the agents that are off."""

    agents: dict[str, dict[str, Any]] = {}
    agents_off: tuple[str, ...] = ()


def split_key(name: str) -> tuple[str, bool]:
    """Return the agent in a control's name, and whether the control is its cadence."""
    match = CONFIG_KEY.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return match[1], bool(match[2])


def read_key(table: dict[str, Any], overrides: Overrides, name: str) -> str:
    """Return the value of a key in effect; "" if it has none.

    The cadence of an agent that is off is what it will be.
    """
    agent, is_cadence = split_key(name)
    if is_cadence:
        overrides = Overrides(overrides.agents)
    agents = as_table(with_overrides(table, overrides)["agents"])
    if is_cadence:
        return str(as_table(agents.get(agent)).get("every", ""))
    return "1" if agent in agents else "0"


def with_key(table: dict[str, Any], overrides: Overrides, name: str, value: str) -> Overrides:
    """Return overrides with a new value of a key. A value equal to the files' is omitted."""
    agent, is_cadence = split_key(name)
    configured = as_table(table.get("agents"))
    over = dict(overrides.agents.get(agent, {}))
    off = {*overrides.agents_off}
    if is_cadence:
        over.pop("every", None)
        if value and as_table(configured.get(agent)).get("every") != value:
            over["every"] = value
    elif value == "0" and agent in configured:
        off.add(agent)
    else:
        off.discard(agent)
    agents = {key: each for key, each in overrides.agents.items() if key != agent}
    # An agent that is only here is on, even without a key.
    is_needed = bool(over) if agent in configured else is_cadence or value == "1"
    if is_needed:
        agents[agent] = over
    return Overrides(agents, tuple(sorted(off)))


def with_overrides(table: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the table of the files, updated with the overrides."""
    agents = dict(as_table(table.get("agents")))
    for name, over in overrides.agents.items():
        agents[name] = as_table(agents.get(name)) | over
    for name in overrides.agents_off:
        agents.pop(name, None)
    return table | {"agents": agents}


def read_overrides(path: str) -> Overrides:
    """Return the content of the file; nothing without the file. Raise CcagentError."""
    try:
        _, content = read_trusted(path, path.lstrip("/"), _LARGEST)
        return msgspec.toml.decode(content, type=Overrides)
    except NotHereError:
        return Overrides()
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnparsableError(f"{path}: {error}") from error


def write_overrides(path: str, overrides: Overrides) -> None:
    """Write the file atomically. Every user may read it. Raise CcagentError."""
    from ccagent.config.defaults import toml

    lines = [f"agents-off = {toml([*overrides.agents_off])}"]
    for name, table in overrides.agents.items():
        lines.append(f"[agents.{toml(name)}]")
        lines += [f"{toml(key)} = {toml(value)}" for key, value in table.items()]
    try:
        make_directory(os.path.dirname(path), 0o755)
        replace_file(path, ("\n".join(lines) + "\n").encode(), 0o644)
    except OSError as error:
        raise NotPermittedError(f"{path}: {error.strerror}") from error


def apply_overrides(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the overrides. If they can't be read, log a warning and omit them."""
    path = str(as_table(table.get("controls")).get("overrides", OVERRIDES))
    try:
        return with_overrides(table, read_overrides(path))
    except CcagentError as error:
        logger.warning("overrides are not used: %s", error)
        return table
