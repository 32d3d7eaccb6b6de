"""What can never be stored, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_REASONS = 20


class RefusedRecord(NamedTuple):
    """A record that can never be stored. number: from 1."""

    number: int
    reason: str


class RefusedArrayError(CcagentError):
    """An array that can never be stored: no part of it is.

    records: those at fault, the first of them; none if the whole is no array.
    is_forbidden: this sender may not send it, another one might.
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
    """A record that can never be stored: the message is the reason."""


class SenderError(RecordError):
    """A record of another server than the sender's."""
