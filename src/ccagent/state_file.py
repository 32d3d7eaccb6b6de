"""A file in which an agent keeps what it must know after a restart."""

from __future__ import annotations

import contextlib
import os
from typing import TypeVar

import msgspec

from ccagent.log import logger

T = TypeVar("T")


def read_state(path: str, kind: type[T], limit: int, otherwise: str) -> T | None:
    """Read what `write_state` wrote; None without a file.

    For one that can't be read, is damaged or larger than `limit` bytes also None, and a warning
    that ends with `otherwise`.
    """
    try:
        with open(path, "rb") as file:
            return msgspec.msgpack.decode(file.read(limit), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    except (msgspec.MsgspecError, ValueError):
        reason = "damaged"
    logger.warning("state-file %s: %s; %s", path, reason, otherwise)
    return None


def write_state(path: str, state: object) -> None:
    """Write a file, whole or not at all; what can't be written is said."""
    temporary = f"{path}.new"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(msgspec.msgpack.encode(state))
        os.replace(temporary, path)
    except OSError as error:
        logger.error("state-file %s: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
