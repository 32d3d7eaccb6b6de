"""The keys set by `config` controls, and their file. They override the configuration files.

The file is below /run. A boot deletes it, and the configuration files are in effect again.
"""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.config.settings import as_table
from ccagent.controls.settings import CONFIG_KEY, OVERRIDES
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.machine.node import read_trusted
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping


OFF = "agents-off"
"""The key of the overrides with the list of disabled agents."""


def check_overrides(overrides: dict[str, Any]) -> None:
    """Raise ValueError unless overrides have the form returned by `with_key`."""
    try:
        msgspec.convert(overrides.get("agents", {}), dict[str, dict[str, Any]])
        msgspec.convert(overrides.get(OFF, []), list[str])
    except msgspec.ValidationError as error:
        raise ValueError(f"expected agents as tables, and {OFF} as a list of names") from error


def split_key(name: str) -> tuple[str, bool]:
    """Return the agent in a control's name, and whether the control is its cadence."""
    match = CONFIG_KEY.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return match[1], bool(match[2])


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


_LARGEST = 256 * 1024


def read_overrides(path: str) -> dict[str, Any]:
    """Return the table in the file; an empty one without the file. Raise CcagentError."""
    try:
        _, content = read_trusted(path, path.lstrip("/"), _LARGEST)
    except NotHereError:
        return {}
    try:
        overrides = tomllib.loads(content.decode("utf-8"))
        check_overrides(overrides)
    except ValueError as error:
        raise UnparsableError(f"{path}: {error}") from error
    return overrides


def write_overrides(path: str, overrides: Mapping[str, Any]) -> None:
    """Write the file atomically. Every user may read it. Raise CcagentError."""
    from ccagent.config.defaults import toml

    lines = [f"{OFF} = {toml(overrides.get(OFF, []))}"]
    for name, table in as_table(overrides.get("agents")).items():
        lines.append(f"[agents.{toml(name)}]")
        lines += [f"{toml(key)} = {toml(value)}" for key, value in as_table(table).items()]
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
