"""Digests of sent records, kept across restarts."""

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
    """Distinguishes new and changed records from sent records.

    path: state file; empty: only in memory. A round starts with the first `is_new` after `commit`.
    Records that a round does not show are forgotten, so the size is that of one round.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sent: set[int] = set()
        self._seen: set[int] = set()
        self._is_saved = False
        self._last = (b"", _digest(b""))
        self.until = 0
        """Seconds since 1970 up to which all jobs were sent; 0: no job was sent yet."""
        if path:
            self._load()

    def is_new(self, record: bytes) -> bool:
        """Return whether a record, given as its content, was not sent before.

        The record counts as sent from the next commit on.
        """
        digest = _digest(record)
        self._seen.add(digest)
        return digest not in self._sent

    def is_known(self, record: bytes) -> bool:
        """Return whether a record was sent before. If so, keep it for the next round."""
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
        """Note all shown records as sent, in memory.

        until: None for an incomplete round; then no record is forgotten.
        """
        if until is None:
            self._sent |= self._seen
        else:
            self._sent, self.until = self._seen, until
        self._seen = set()
        self._is_saved = False
        if len(self._sent) > _LARGEST:
            logger.warning("agent jobs: more than %d records; sending all again", _LARGEST)
            self._sent = set()

    def save(self) -> None:
        """Write the state file if the state has changed.

        Log an error if that fails; the state stays in memory.
        """
        if self._path and not self._is_saved:
            write_state(
                self._path, _StateFile(_VERSION, self.until, array("Q", self._sent).tobytes())
            )
            self._is_saved = True

    def forget(self) -> None:
        """Forget all sent records: all records are new. The file stays unchanged until `save`."""
        self._sent, self.until = set(), 0

    def discard(self) -> None:
        """Forget the records shown since the last commit: they were not sent."""
        self._seen = set()

    def _load(self) -> None:
        found = read_state(self._path, _StateFile, _LARGEST_FILE, "sending all again")
        if found is None or found.version != _VERSION:
            return
        if len(found.digests) % _DIGEST_BYTES:
            logger.warning("state-file %s: damaged; sending all again", self._path)
            return
        self._sent, self.until = set(array("Q", found.digests)), found.until


def _digest(record: bytes) -> int:
    return int.from_bytes(blake2b(record, digest_size=_DIGEST_BYTES).digest(), "big")
