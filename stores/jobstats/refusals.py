"""Exceptions for data that can never be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_REASONS = 1000


class RefusedRecord(NamedTuple):
    """A record that can never be stored. number: from 1."""

    number: int
    reason: str


class RefusedArrayError(CcagentError):
    """An array that can never be stored. None of its records is stored.

    records: the first invalid records; empty if the body is not an array. is_forbidden: true if
    another sender may be permitted to send the array.
    """

    def __init__(
        self, reason: str, records: Iterable[RefusedRecord] = (), *, is_forbidden: bool = False
    ) -> None:
        self.records = list(records)[:_MOST_REASONS]
        first = f": record {self.records[0].number}: {self.records[0].reason}" if records else ""
        super().__init__(reason + first)
        self.reason = reason
        self.is_forbidden = is_forbidden


class RecordError(CcagentError):
    """A record that can never be stored. The message is the reason."""


class SenderError(RecordError):
    """A record of a server that the sender's token does not permit."""
