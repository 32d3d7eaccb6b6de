"""Records that were sent: a digest of each, kept over restarts."""

from __future__ import annotations

from array import array
from hashlib import blake2b

import msgspec

from ccagent.agents.state_file import read_state, write_state
from ccagent.log import logger

_VERSION = 1
_DIGEST_BYTES = 8
_LARGEST = 2_000_000
_LARGEST_FILE = 64 * 1024 * 1024


class _StateFile(msgspec.Struct):
    version: int
    until: int
    digests: bytes


class SentState:
    """Distinguishes new and changed records from sent ones. Empty `path`: only in memory.

    A round begins with the first `is_new` after `commit`. What no round shows any more is
    forgotten, so that the size is that of one round.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sent: set[int] = set()
        self._seen: set[int] = set()
        self._is_saved = False
        self._last = (b"", _digest(b""))
        self.until = 0
        """Seconds since 1970 up to which all jobs are sent; 0: none ever was."""
        if path:
            self._load()

    def is_new(self, record: bytes) -> bool:
        """Return whether a record, as bytes that change when it does, was not sent before.

        It counts as sent from the next commit on.
        """
        digest = _digest(record)
        self._seen.add(digest)
        return digest not in self._sent

    def is_known(self, record: bytes) -> bool:
        """Return whether a record was sent before; one that was is remembered further."""
        digest = _digest(record)
        self._last = (record, digest)
        if digest not in self._sent:
            return False
        self._seen.add(digest)
        return True

    def add(self, record: bytes) -> None:
        """Count a record as sent from the next commit on."""
        last, digest = self._last
        self._seen.add(digest if record is last else _digest(record))

    def retract(self, record: bytes) -> None:
        """Count a record as not sent."""
        digest = _digest(record)
        self._sent.discard(digest)
        self._seen.discard(digest)

    def commit(self, until: int | None) -> None:
        """Remember what was shown as sent, in memory.

        None: the round was cut short, so that nothing is forgotten.
        """
        if until is None:
            self._sent |= self._seen
        else:
            self._sent, self.until = self._seen, until
        self._seen = set()
        self._is_saved = False
        if len(self._sent) > _LARGEST:
            logger.warning("agent jobs: more than %d records; all are sent again", _LARGEST)
            self._sent = set()

    def save(self) -> None:
        """Write what is remembered to the file, unless nothing has changed.

        A file that can't be written is logged, and the state kept in memory.
        """
        if self._path and not self._is_saved:
            write_state(
                self._path, _StateFile(_VERSION, self.until, array("Q", self._sent).tobytes())
            )
            self._is_saved = True

    def forget(self) -> None:
        """Forget what was sent ever, so that all is new; the file is as it was until `commit`."""
        self._sent, self.until = set(), 0

    def discard(self) -> None:
        """Forget what was shown since the last commit: it was not sent."""
        self._seen = set()

    def _load(self) -> None:
        found = read_state(self._path, _StateFile, _LARGEST_FILE, "all is sent again")
        if found is None or found.version != _VERSION:
            return
        if len(found.digests) % _DIGEST_BYTES:
            logger.warning("state-file %s: damaged; all is sent again", self._path)
            return
        self._sent, self.until = set(array("Q", found.digests)), found.until


def _digest(record: bytes) -> int:
    return int.from_bytes(blake2b(record, digest_size=_DIGEST_BYTES).digest(), "big")
