"""A file for the textfile collector of node_exporter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, NotPermittedError, TransportError
from ccagent.exporter.exposition import join_text
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from ccagent.exporter.exposition import Block

NAME = "ccagent.prom"
_MODE = 0o644


def write_textfile(directory: str, blocks: list[Block]) -> None:
    """Write the families to DIRECTORY/ccagent.prom atomically.

    Raise ConfigurationError if the directory does not exist or `blocks` is empty, TransportError
    if writing fails.
    """
    if not blocks:
        raise ConfigurationError(
            "nothing to write: families of node_exporter are omitted; choose other --names"
        )
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{directory}: no such directory")
    path = os.path.join(directory, NAME)
    try:
        replace_file(path, join_text(blocks), _MODE)
    except (OSError, NotPermittedError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TransportError(f"{path}: not written: {reason}") from error
