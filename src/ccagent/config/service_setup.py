"""The table of a service in a configuration. Agents and sinks in the file are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ccagent import log
from ccagent.config.conversion import convert, place_errors
from ccagent.config.files import DEFAULT_PATH, read_default, read_files
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError
from ccagent.machine.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound=Settings)


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
