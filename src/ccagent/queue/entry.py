"""The stored form of one queued message, with a checksum."""

from __future__ import annotations

import struct
import zlib

import msgspec

from ccagent.errors import UnparsableError
from ccagent.records.message import Message

MAGIC = b"\xccQ\r\n"
"""The first bytes of every stored entry."""

HEAD = struct.Struct("<4sII")
"""MAGIC, length of the content in bytes, CRC-32 of the content."""


class QueueEntry(msgspec.Struct, frozen=True, array_like=True):
    """One queued message.

    stored: seconds since 1970 by the wall clock when the message was queued; only for display.
    clock: seconds of the queue's clock at that time (see `queue_clock`); the age is computed from
    it.
    """

    stored: float
    clock: float
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(QueueEntry)


def encode_entry(entry: QueueEntry) -> bytes:
    """Return the stored form of an entry."""
    content = _encoder.encode(entry)
    return HEAD.pack(MAGIC, len(content), zlib.crc32(content)) + content


def decode_entry(stored: object) -> QueueEntry:
    """Return the entry in a column. Raise UnparsableError for any other content."""
    if not isinstance(stored, bytes):
        raise UnparsableError("damaged: not a message")
    if len(stored) < HEAD.size:
        raise UnparsableError(f"damaged: {len(stored)} bytes are not a message")
    magic, length, checksum = HEAD.unpack_from(stored)
    content = memoryview(stored)[HEAD.size :]
    if magic != MAGIC or length != len(content):
        raise UnparsableError("damaged: the head of the message is wrong")
    if zlib.crc32(content) != checksum:
        raise UnparsableError("damaged: the checksum of the message is wrong")
    try:
        return _decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnparsableError(f"stored by another version: {error}") from error
