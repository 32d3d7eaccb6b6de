"""Acceptance of connections within the process's limit of open files.

asyncio accepts as many connections at once as its backlog permits. Without a free descriptor it
repeatedly logs a traceback for each of them. Therefore some descriptors stay free.
"""

from __future__ import annotations

import errno
import logging
import resource
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.log import logger
from ccagent.machine.descriptors import raise_limit

if TYPE_CHECKING:
    import asyncio

_RESERVED = 32
"""Descriptors reserved for the log, the database and other files."""

_PART = 8
_LOG_EVERY = 60.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ConnectionPlan(NamedTuple):
    """Maximum number of open connections, and of connections accepted at once."""

    most: int
    backlog: int


def plan_connections(wanted: int, backlog: int, *, others: int = 0) -> ConnectionPlan:
    """Raise the limit of open files. Return the limits of connections for a server.

    others: connections of another server of this process, which may have half of all.
    """
    raise_limit()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return ConnectionPlan(wanted, backlog)
    left = files - _RESERVED
    share = max(2, left - min(others, left // 2))
    backlog = max(1, min(backlog, share // _PART))
    most = max(1, min(wanted, share - 2 * backlog))
    if most < wanted:
        logger.log(
            logging.WARNING if most < wanted // 2 else logging.INFO,
            "connections: %d at a time instead of %d: %d files may stay open (LimitNOFILE)",
            most, wanted, files,
        )  # fmt: skip
    return ConnectionPlan(most, backlog)


def handle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log failures to accept, at most once a minute. Other errors are handled as before."""
    logged = -_LOG_EVERY

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _SHORT:
            loop.default_exception_handler(context)
        elif monotonic() - logged >= _LOG_EVERY:
            logged = monotonic()
            logger.error("no connection can be accepted: %s; trying again", error.strerror)

    loop.set_exception_handler(handle)
