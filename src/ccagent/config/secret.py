"""Secrets, read from private files or systemd credentials, never from arguments.

Also values from files that are read again when the files change, such as certificates.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import ConfigurationError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGEST = 64 * 1024
_CREDENTIAL = "credential:"

T = TypeVar("T")


def secret_path(place: str) -> str:
    """Return the file of a secret: a path, or `credential:NAME` for a systemd credential.

    Source: systemd.exec(5), LoadCredential=. Raise ConfigurationError without this credential.
    """
    if not place.startswith(_CREDENTIAL):
        return place
    name = place.removeprefix(_CREDENTIAL)
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise ConfigurationError(f"{place}: no credentials: the unit has no LoadCredential=")
    if not name or "/" in name or name in {".", ".."}:
        raise ConfigurationError(f"{place}: not the name of a credential")
    return os.path.join(directory, name)


def read_secret(place: str) -> str:
    """Return the first line of a secret. Its file must not be readable by others.

    Raise ConfigurationError if it can't be read. The error never contains the content.
    """
    text = secret_text(place).splitlines()[:1]
    if not text or not text[0].strip() or not text[0].isprintable():
        raise ConfigurationError(f"{place}: its first line holds no secret")
    return text[0].strip()


def secret_text(place: str) -> str:
    """Return the whole text of a secret. Raise ConfigurationError as `read_secret` does."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(secret_path(place), flags)
    except OSError as error:
        raise ConfigurationError(f"{place}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{place}: not a path") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{place}: not a regular file")
        if status.st_mode & stat.S_IRWXO:
            raise ConfigurationError(f"{place}: others can read this secret: chmod o= it")
        return os.read(descriptor, _LARGEST).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{place}: not text in UTF-8") from error
    except OSError as error:
        raise ConfigurationError(f"{place}: {error.strerror}") from error
    finally:
        os.close(descriptor)


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
