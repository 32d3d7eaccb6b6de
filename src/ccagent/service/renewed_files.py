"""Values from files that are read again when the files change."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import ConfigurationError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class RenewedFiles(Generic[T]):
    """A value from files. A change to invalid files is logged, and the last valid value stays.

    name: of the files in messages. read: returns the value, or raises ConfigurationError. every:
    seconds between two looks at the files.
    """

    def __init__(
        self, name: str, paths: Sequence[str], read: Callable[[], T], every: float
    ) -> None:
        """Read the files. Raise ConfigurationError."""
        self._name = name
        self._paths = paths
        self._read = read
        self._every = every
        self._looked_at = time.monotonic()
        self._stamps = self._look()
        self._value = read()

    def get(self) -> T:
        """Return the value of the last valid files."""
        now = time.monotonic()
        if now < self._looked_at + self._every:
            return self._value
        self._looked_at = now
        stamps = self._look()
        if stamps != self._stamps:
            try:
                self._value = self._read()
            except ConfigurationError as error:
                logger.error(
                    "%s: not read again, the last valid one is used: %s", self._name, error
                )
            else:
                self._stamps = stamps
                logger.info("%s: read again", self._name)
        return self._value

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return inode, mtime (ns) and size of each file; None for one that can't be found."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found
