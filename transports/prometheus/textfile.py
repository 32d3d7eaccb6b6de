"""A file for the textfile collector of node_exporter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, NotPermittedError, TransportError
from ccagent.machine.private_files import replace_file
from ccagent.transports.prometheus.exposition import join_text

if TYPE_CHECKING:
    from ccagent.transports.prometheus.exposition import Block

NAME = "ccagent.prom"
_MODE = 0o644


def write_textfile(directory: str, blocks: list[Block]) -> None:
    """Write the families to DIRECTORY/ccagent.prom, whole or not at all.

    Raises ConfigurationError if there is no such directory or nothing to write, else
    TransportError.
    """
    if not blocks:
        raise ConfigurationError(
            "nothing to write: node_exporter has its own families; choose other names than those"
        )
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{directory}: there is no such directory")
    path = os.path.join(directory, NAME)
    try:
        replace_file(path, join_text(blocks), _MODE)
    except (OSError, NotPermittedError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TransportError(f"{path}: not written: {reason}") from error
