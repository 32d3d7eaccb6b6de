"""Data that can never be stored, and the rights of a sender."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.log import printable

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
    """A record of a server or target that the sender's token does not permit."""


class SenderRights(NamedTuple):
    """What a sender may store.

    server: the only accepted one; None: any. targets: patterns of the only accepted targets;
    empty: any.
    """

    server: str | None = None
    targets: tuple[str, ...] = ()

    def require_server(self, server: str, key: str) -> None:
        """Raise SenderError if the token is for another server. key: of the server."""
        if self.server not in {None, server}:
            raise SenderError(
                f"{key}: {printable(server)!r} is not {self.server!r}, the owner of the token"
            )

    def require_target(self, target: str) -> None:
        """Raise SenderError if the token is for other targets."""
        if self.targets and not any(fnmatchcase(target, one) for one in self.targets):
            raise SenderError(f"target: {printable(target)!r} is none of the token's targets")


ANY_SENDER = SenderRights()
