"""The messages of a queue, their stored form, and the clock by which they age.

The clock advances with the uptime of the machine, also across restarts of the process. After a
reboot only the time since that boot is added. It is therefore never ahead of the true time, and
independent of the wall clock.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ccagent.errors import UnparsableError
from ccagent.records.message import Message


class QueueEntry(msgspec.Struct, frozen=True, array_like=True):
    """One queued message.

    stored: seconds since 1970 by the wall clock when the message was queued; only for display.
    clock: seconds of the queue's clock at that time; the age is computed from it. reason, rejected:
    of a dead letter, and when it was rejected, in seconds since 1970; a queued message has no
    reason.
    """

    stored: float
    clock: float
    message: Message
    reason: str = ""
    rejected: float = 0.0


class QueuedMessage(NamedTuple):
    """One queued message, and its number in the queue."""

    number: int
    message: Message


encode_entry = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(QueueEntry)


def decode_entry(payload: memoryview | bytes) -> QueueEntry:
    """Return the entry of a payload. Raise UnparsableError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnparsableError(f"stored by another version: {error}") from error


class Moment(NamedTuple):
    """A reading of the queue's clock in seconds, with boot id and uptime in seconds."""

    clock: float
    boot: bytes
    uptime: float


def resume(last: Moment | None, newest: float, boot: bytes, uptime: float) -> Moment:
    """Return the reading at `uptime` seconds of the boot `boot`, of a clock that was stored.

    last: reading in the newest file, None if damaged; newest: the newest message's seconds.
    """
    if last is None:
        return Moment(newest, boot, uptime)
    if last.boot == boot and last.uptime <= uptime:
        return Moment(last.clock + uptime - last.uptime, boot, uptime)
    return Moment(newest + uptime, boot, uptime)
