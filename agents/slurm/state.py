"""What has been sent: a digest of each record, kept over restarts."""

from __future__ import annotations

import contextlib
import os
from array import array
from hashlib import blake2b

import msgspec

from ccagent.log import logger

_VERSION = 1
_DIGEST_BYTES = 8
_LARGEST = 2_000_000
_LARGEST_FILE = 64 * 1024 * 1024


class _File(msgspec.Struct):
    version: int
    until: int
    digests: bytes


class SentState:
    """Tells new and changed records from those that were sent. Empty `path`: only in memory.

    A round begins with the first `is_new` after `commit`. What no round shows any more is
    forgotten, so that the size is that of one round.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sent: set[int] = set()
        self._seen: set[int] = set()
        self.until = 0
        """Up to when all jobs are sent, in seconds since 1970; 0: none ever was."""
        if path:
            self._load()

    def is_new(self, record: bytes) -> bool:
        """Tell whether a record, as bytes that change when it does, was not sent before."""
        digest = int.from_bytes(blake2b(record, digest_size=_DIGEST_BYTES).digest(), "big")
        self._seen.add(digest)
        return digest not in self._sent

    def commit(self, until: int | None) -> None:
        """Remember what was shown as sent. None: the round was cut short, so nothing is forgotten.

        What can't be written is said, and kept in memory.
        """
        if until is None:
            self._sent |= self._seen
        else:
            self._sent, self.until = self._seen, until
        self._seen = set()
        if len(self._sent) > _LARGEST:
            logger.warning("agent jobs: more than %d records; all are sent again", _LARGEST)
            self._sent = set()
        if self._path:
            self._save()

    def discard(self) -> None:
        """Forget what was shown since the last commit: it was not sent."""
        self._seen = set()

    def _load(self) -> None:
        try:
            with open(self._path, "rb") as file:
                found = msgspec.msgpack.decode(file.read(_LARGEST_FILE), type=_File)
            digests = array("Q", found.digests)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("state-file %s: %s; all is sent again", self._path, error.strerror)
            return
        except (msgspec.MsgspecError, ValueError):
            logger.warning("state-file %s: damaged; all is sent again", self._path)
            return
        if found.version == _VERSION:
            self._sent, self.until = set(digests), found.until

    def _save(self) -> None:
        content = _File(_VERSION, self.until, array("Q", self._sent).tobytes())
        temporary = f"{self._path}.new"
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "wb") as file:
                file.write(msgspec.msgpack.encode(content))
            os.replace(temporary, self._path)
        except OSError as error:
            logger.error("state-file %s: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
