"""Reading of files that only an administrator can have written, in any directory."""

from __future__ import annotations

import errno
import os
import stat

from ccagent.errors import NotPermittedError, UnparsableError, raise_for

_PIECE = 65536
# Do not follow a link, and do not block on a pipe without a writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def read(place: str, path: str, limit: int) -> tuple[float, bytes]:
    """Return the modification time and the content of a file. See `Node.read_trusted`.

    place: the path to open. path: the path in errors, without the leading slash.
    """
    try:
        descriptor = os.open(place, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPermittedError(f"/{path}: a symbolic link is not followed") from error
        raise_for(path, error)
    try:
        status = os.fstat(descriptor)
        _check(status, path)
        parts: list[bytes] = []
        size = 0
        while part := os.read(descriptor, _PIECE):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise UnparsableError(f"/{path}: larger than {limit} bytes")
        return status.st_mtime, b"".join(parts)
    except OSError as error:
        raise_for(path, error)
    finally:
        os.close(descriptor)


def _check(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPermittedError(f"/{path}: not a regular file")
    if status.st_uid not in {0, os.geteuid()}:
        raise NotPermittedError(f"/{path}: belongs to user {status.st_uid}, not to root or ccagent")
    if status.st_mode & stat.S_IWOTH:
        raise NotPermittedError(f"/{path}: every user may write it: chmod o-w it")
    if status.st_nlink > 1:
        # A user with write permission in the directory can link any file of root into it.
        raise NotPermittedError(f"/{path}: a file with several names")
