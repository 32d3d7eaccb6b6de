"""The process of a store: its open files, its garbage, and programs for large libraries.

asyncio accepts as many connections at once as its backlog permits. Without a free descriptor it
repeatedly logs a traceback for each of them. Therefore some descriptors stay free.

Garbage is collected in short steps, and without the objects that stay.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
from time import monotonic
from typing import Any, NamedTuple

from ccagent.errors import ProgramError
from ccagent.log import logger, printable
from ccagent.machine.descriptors import raise_limit
from ccagent.machine.interpreter import python

_RESERVED = 32
"""Descriptors reserved for the log, the database and other files."""

_PART = 8
_LOG_EVERY = 60.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_THRESHOLDS = 20_000, 4, 4
"""New objects before a collection of the youngest generation, and the ratios of the older ones.

The oldest generation then has some 300,000 objects, which take about 30 ms. Lower values cost
throughput.
"""

_OLDEST = 2
_MANY = 50_000
"""Minimum number of survivors of a full collection that are excluded from further ones.

A frozen connection with a reference to itself would stay for ever, so few are frozen.
"""


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


def shorten_collections() -> None:
    """Exclude all present objects from collections, and many objects that survive a full one.

    A store has millions of objects: series and their names. One collection of them would hold up
    all requests for a second. A frozen object is still released at its last reference. A start
    leaves less than a thousand objects of garbage, so they are not collected before.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(_freeze)
    gc.enable()


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST and len(gc.get_objects(_OLDEST)) > _MANY:
        gc.freeze()


async def run_program(module: str, *arguments: str, text: bytes = b"", seconds: float) -> bytes:
    """Run the function `main` of a module of the metric store. Return its stdout.

    Raise ProgramError, OSError, TimeoutError.
    """
    name = f"ccagent.stores.metrics.{module}"
    process = await asyncio.create_subprocess_exec(
        *python(f"from {name} import main; main()"), *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        found, said = await asyncio.wait_for(process.communicate(text), seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ProgramError(printable(last) or f"{module}: exit status {process.returncode}")
    return found
