"""What the kernel answers for a file, as errors of ccagent's tree."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from ccagent.errors import (
    NotHereError,
    NotPermittedError,
    ShortageError,
    UnparsableError,
    VanishedError,
)


def raise_for(path: str, error: OSError) -> NoReturn:
    """Raise the error of the tree that stands for an OSError of `/path`."""
    reason = os.strerror(error.errno or 0)
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO | errno.EOPNOTSUPP:
            raise NotHereError(f"/{path}: {reason}") from None
        case errno.ESRCH:
            raise VanishedError(f"/{path}: {reason}") from None
        case errno.EACCES | errno.EPERM:
            raise NotPermittedError(f"/{path}: {reason}") from None
        case errno.EMFILE | errno.ENFILE:
            raise ShortageError(f"/{path}: {reason}") from None
        case _:
            raise UnparsableError(f"/{path}: {reason}") from None
