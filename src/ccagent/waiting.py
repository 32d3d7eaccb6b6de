"""What waits in the outboxes on disk, and sending it on demand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ccagent.clock import timestamp
from ccagent.config import build_transport
from ccagent.errors import ConfigurationError
from ccagent.log import printable
from ccagent.once import drained
from ccagent.spool import Spool
from ccagent.store import SUFFIX, Store, file_of

if TYPE_CHECKING:
    from ccagent.config import Configuration


def report(configuration: Configuration) -> str:
    """Write a line for each sink that has an outbox, and one for each refused message."""
    lines = [
        f"{'sink':20} {'messages':>9} {'bytes':>12} {'oldest':>9} {'refused':>8} {'dropped':>8}"
    ]
    settings = configuration.outbox
    for sink in _stored(configuration):
        path = os.path.join(_directory(configuration), file_of(sink))
        spool = Spool(path, max_bytes=settings.max_bytes, max_age=settings.max_age.seconds)
        summary, refused = spool.summary(), spool.refused()
        spool.close()
        lines.append(
            f"{printable(sink):20} {summary.messages:9} {summary.size:12} {summary.age:8.0f}s "
            f"{summary.refused:8} {summary.dropped:8}"
        )
        lines += [
            f"  {timestamp(one.stored)} {one.message.kind} of {one.message.node}, "
            f"{len(one.message.body)} bytes: {printable(one.reason)}"
            for one in refused
        ]
    return "\n".join(lines) + "\n"


def flush(configuration: Configuration) -> bool:
    """Send what waits for the configured sinks; give whether all is sent."""
    sent = True
    for sink in _stored(configuration):
        if sink in configuration.sinks:
            transport = build_transport(configuration.sinks[sink])
            sent &= drained(sink, Store(sink, configuration.outbox), transport)
    return sent


def _directory(configuration: Configuration) -> str:
    directory = configuration.outbox.directory
    if not directory:
        raise ConfigurationError(f"{configuration.place}: outbox.directory: none is set")
    return directory


def _stored(configuration: Configuration) -> list[str]:
    """Name the sinks that have an outbox on disk."""
    directory = _directory(configuration)
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise ConfigurationError(f"outbox.directory: {directory}: {error.strerror}") from None
    return sorted(unquote(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
