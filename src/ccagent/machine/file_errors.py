"""Conversion of the kernel's file errors to ccagent's exceptions."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    ShortageError,
    UnparsableError,
    VanishedError,
)


def raise_for(path: str, error: OSError | ValueError) -> NoReturn:
    """Raise ccagent's exception for an OSError of `/path`.

    Python raises a ValueError for an impossible path, such as one with a NUL.
    """
    if isinstance(error, ValueError):
        raise UnparsableError(f"/{path!r}: {error}") from error
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO | errno.EOPNOTSUPP:
            kind: type[CcagentError] = NotHereError
        case errno.ESRCH:
            kind = VanishedError
        case errno.EACCES | errno.EPERM:
            kind = NotPermittedError
        case errno.EMFILE | errno.ENFILE:
            kind = ShortageError
        case _:
            kind = UnparsableError
    raise kind(f"/{path}: {os.strerror(error.errno or 0)}") from error
