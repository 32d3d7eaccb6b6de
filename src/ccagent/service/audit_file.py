"""A private file of lines that is only appended to, of bounded size: an audit."""

from __future__ import annotations

import errno
import os
import threading

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private

LARGEST = 4 * 1024 * 1024
"""Maximum bytes of the file. Above, it is renamed to NAME.1 and replaces the old one."""


class AuditFile:
    """Appends lines. A write error is logged once, and does not stop the service."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_failing = False
        self._lock = threading.Lock()

    def append(self, line: bytes) -> None:
        """Append a line with its line break."""
        try:
            make_directory(os.path.dirname(self._path))
            with self._lock, open(self._open(len(line)), "r+b", buffering=0) as file:
                _append(file.fileno(), line)
        except (OSError, NotPermittedError) as error:
            if not self._is_failing:
                logger.error("audit: %s: %s; changes are in the log only", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _open(self, more: int) -> int:
        """Open the file. If `more` bytes would make it too large, rename the old file first."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = open_private(self._path, flags)
        if os.fstat(descriptor).st_size + more <= LARGEST:
            return descriptor
        os.close(descriptor)
        os.replace(self._path, f"{self._path}.1")
        return open_private(self._path, flags)


def _append(descriptor: int, line: bytes) -> None:
    """Append a line, on a new line after a line that a full disk has cut. Raise OSError."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
