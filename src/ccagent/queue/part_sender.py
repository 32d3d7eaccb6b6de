"""Sending a message in parts, if the message is too large or some of its records are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import RejectedError, RetryableError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.message import Message
    from ccagent.transports.base import Transport

_MOST_TAKEN_PARTS = 100_000
"""Maximum number of remembered parts, of messages whose other parts are not sent yet."""
_LEAST_PART = 1024
"""Minimum size of a part in bytes."""
_MOST_PARTS = 64
"""Maximum ratio of the sizes of a message and its parts.

Also the maximum number of requests to find the refused records of a message.
"""
_PARTS_PER_SUCCESS = 8
"""Additional requests for each part that is taken: the search is then worth its cost."""
_FEW_PARTS = 6
"""Maximum number of requests if the whole previous message was refused."""


class SentParts(NamedTuple):
    """The parts of a message that the sink took, and the refused parts with the reasons."""

    taken: list[Message]
    refused: list[tuple[Message, str]]


class PartSender:
    """Sends messages in parts, and remembers the parts taken in earlier attempts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._taken: set[str] = set()
        self._refused_wholly: set[str] = set()

    def send(self, message: Message, limit: int, error: RejectedError | None) -> SentParts:
        """Send a message in parts of at most `limit` bytes, or smaller ones if these are refused.

        error: the refusal of the whole message. If the reason is not the size, the message is sent
        in halves. Raise RetryableError if the sink is unreachable or busy, or if it takes no
        message of a usual size: its limit is wrong, not the message.
        """
        parts = SentParts([], [])
        least = max(_LEAST_PART, len(message.body) // _MOST_PARTS)
        if error is not None and not isinstance(error, TooLargeError):
            self._send_halves(message, error, parts)
        elif limit < _LEAST_PART:
            raise _implausible(str(error or f"it takes {limit} bytes"))
        elif limit >= least:
            self._send_parts(message, limit, least, parts)
        return parts

    def forget(self, taken: Iterable[Message]) -> None:
        """Forget the parts of a message that is finished."""
        self._taken.difference_update(part.id for part in taken)
        if len(self._taken) > _MOST_TAKEN_PARTS:
            self._taken.clear()

    def note_taken(self, kinds: Iterable[str]) -> None:
        """Note that the sink has taken whole messages of some kinds."""
        if self._refused_wholly:
            self._refused_wholly.difference_update(kinds)

    def _send_parts(self, message: Message, limit: int, least: int, parts: SentParts) -> None:
        from ccagent.records.splitting import split_message

        for part in split_message(message, limit):
            try:
                self._send_part(part, parts)
            except TooLargeError as error:
                smaller = choose_limit(error, part)
                if not parts.taken and len(part.body) < 2 * _LEAST_PART:
                    raise _implausible(str(error)) from error
                if smaller < least:
                    parts.refused.append((part, str(error)))
                else:
                    self._send_parts(part, smaller, least, parts)
            except RejectedError as error:
                self._send_halves(part, error, parts)

    def _send_part(self, part: Message, parts: SentParts) -> None:
        """Send a part, unless it was taken in an earlier attempt."""
        if part.id not in self._taken:
            self._transport.send([part])
            if part.id:
                self._taken.add(part.id)
        parts.taken.append(part)

    def _send_halves(self, message: Message, error: RejectedError, parts: SentParts) -> None:
        """Send those records of a refused message that the sink takes.

        Each refused half is halved again, to lose few records. The number of requests is bounded.
        The bound is low if the receiver refused a whole message of this kind, and took none since.
        """
        from ccagent.records.splitting import halve_message

        is_suspect = message.topic in self._refused_wholly
        left = _FEW_PARTS if is_suspect else _MOST_PARTS
        pending = [(half, str(error)) for half in reversed(halve_message(message))]
        if not pending:
            parts.refused.append((message, str(error)))
            return
        is_any_taken = False
        while pending:
            part, reason = pending.pop()
            if not left:
                parts.refused.append((part, reason))
                continue
            left -= 1
            try:
                self._send_part(part, parts)
            except RejectedError as again:
                halves = [(half, str(again)) for half in reversed(halve_message(part))]
                pending += halves
                if not halves:
                    parts.refused.append((part, str(again)))
            else:
                left += _PARTS_PER_SUCCESS
                if is_suspect and not is_any_taken:
                    left += _MOST_PARTS - _FEW_PARTS
                is_any_taken = True
        if not is_any_taken:
            self._refused_wholly.add(message.topic)


def _implausible(reason: str) -> RetryableError:
    """Return the error for a receiver that refuses even the smallest parts for their size."""
    text = f"{reason}: a limit below {_LEAST_PART} bytes is wrong: correct it at the receiver"
    return RetryableError(text, is_about_message=True)


def choose_limit(error: RejectedError, message: Message) -> int:
    """Return the size of parts to try after a refusal; 0 if the size was not the reason."""
    if not isinstance(error, TooLargeError):
        return 0
    size = len(message.body)
    return error.limit if error.limit and error.limit < size else size // 2
