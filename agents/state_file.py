"""State files of agents, kept across restarts."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.service.private_files import open_private, replace_file

T = TypeVar("T")


def read_state(path: str, kind: type[T], limit: int, otherwise: str) -> T | None:
    """Return the state that `write_state` wrote, or None without a file.

    Also return None, and log a warning that ends with `otherwise`, if the file can't be read, is
    damaged, exceeds `limit` bytes or may belong to another user.
    """
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            return msgspec.msgpack.decode(file.read(limit), type=kind)
    except FileNotFoundError:
        return None
    except NotPermittedError as error:
        logger.warning("state-file %s; %s", error, otherwise)
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    except (msgspec.MsgspecError, ValueError):
        reason = "damaged"
    logger.warning("state-file %s: %s; %s", path, reason, otherwise)
    return None


def write_state(path: str, state: object) -> None:
    """Replace the state file atomically; log an error if that fails."""
    try:
        replace_file(path, msgspec.msgpack.encode(state))
    except NotPermittedError as error:
        logger.error("state-file %s", error)
    except OSError as error:
        logger.error("state-file %s: %s", path, error.strerror)
