"""The configuration of the control service: [controls], and the names of cluster and node.

Agents and sinks in the file are ignored, so their modules are not loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.config.conversion import convert
from ccagent.config.files import DEFAULT_PATH, read_default, read_files
from ccagent.config.settings import as_table
from ccagent.controls.settings import ControlsSettings, check_controls
from ccagent.errors import ConfigurationError
from ccagent.machine.node import Node

if TYPE_CHECKING:
    from ccagent.log import LogFormat, LogLevel


class ControlSetup(NamedTuple):
    """The settings of the service from a file."""

    path: str
    settings: ControlsSettings
    table: dict[str, Any]

    def make_node(self) -> Node:
        """Return the node of this machine, with its configured names.

        The host name keeps its domain: a request may contain either name.
        """
        return Node(
            hostname=str(self.table.get("hostname", "")),
            cluster=str(self.table.get("cluster", "")),
            hostname_only=False,
        )

    @property
    def log(self) -> tuple[LogLevel, LogFormat]:
        """Level and format of the log. `ccagent config check` refuses invalid values."""
        level, form = self.table.get("log-level"), self.table.get("log-format")
        return (
            level if level in ("error", "warning", "info", "debug") else "warning",
            form if form in ("auto", "journal", "text", "json") else "auto",
        )


def load_setup(path: str | None, *, needs_table: bool) -> ControlSetup:
    """Read and check the file; without `path` the default file. It must exist for the service.

    Raise ConfigurationError with file, line, key and reason.
    """
    file = path or DEFAULT_PATH
    files = read_default() if path is None and not needs_table else read_files(file)
    if files.problems:
        raise ConfigurationError(*files.problems)
    if "controls" not in files.table and needs_table:
        raise ConfigurationError(f"{file}: no table [controls]: nothing to do")
    try:
        settings = check_table(files.table.get("controls", {}), file)
    except ConfigurationError as error:
        raise ConfigurationError(*files.locate(error.problems)) from error
    return ControlSetup(file, settings, as_table(files.table))


def check_table(table: object, path: str) -> ControlsSettings:
    """Return the settings of the table [controls]. Raise ConfigurationError."""
    settings = convert(table, ControlsSettings, "controls", place=path)
    try:
        check_controls(settings)
    except ConfigurationError as error:
        raise ConfigurationError(
            *(f"{path}: controls.{problem}" for problem in error.problems)
        ) from error
    return settings


def without_file() -> ControlSetup:
    """Return the setup of commands without a file."""
    return ControlSetup(DEFAULT_PATH, ControlsSettings(), {})
