"""Check whether other users can create files in ccagent's directories."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.service.private_directories import check_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.configuration import Configuration


def unsafe_places(configuration: Configuration) -> list[tuple[str, str]]:
    """Return the keys of directories that are not safe from other users, each with the reason."""
    found = [(key, check_directory(directory)) for key, directory in _places(configuration)]
    return [(key, reason) for key, reason in found if reason]


def _places(configuration: Configuration) -> Iterator[tuple[str, str]]:
    settings = configuration.settings
    if settings.lock_directory:
        yield "lock-directory", settings.lock_directory
    if settings.status_socket:
        yield "status-socket", os.path.dirname(settings.status_socket)
    if configuration.outbox.directory:
        yield "outbox.directory", configuration.outbox.directory
    for name, sink in configuration.sinks.items():
        scheme, _, path = sink.url.partition(":")
        if scheme == "dir":
            yield f"sinks.{name}.url", path.removeprefix("//")
    for name, agent in configuration.agents.items():
        path = getattr(agent, "state_file", "")
        if path:
            yield f"agents.{name}.state-file", os.path.dirname(path)
        directory = getattr(agent, "state_directory", "")
        if directory:
            yield f"agents.{name}.state-directory", directory
