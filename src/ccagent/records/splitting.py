"""Splitting of messages that are larger than the receiver's limit, and halving of refused ones.

Lines and arrays are split between lines and elements, envelopes by `envelope_splitting`.

If a receiver refuses a message because of one record, the message is halved until the other records
are taken. Halving ignores sizes and omits no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.log import logger
from ccagent.records.envelope_splitting import halve_envelope, split_envelope
from ccagent.records.line_protocol.encoding import shorten
from ccagent.records.packing import (
    SplitBodies,
    decode_list,
    describe_lost,
    group,
    halve,
    select_fitting,
)

if TYPE_CHECKING:
    from ccagent.records.message import Message


def split_message(message: Message, limit: int) -> list[Message]:
    """Return parts of a message with bodies of at most `limit` bytes each.

    A message that fits is its only part. Equal messages have equal parts. The ids of parts are the
    message's id with `-1`, `-2` and so on; receivers use them to recognise a repetition. Records
    that fit in no part are logged and omitted. The list is empty if no record fits.
    """
    if len(message.body) <= limit:
        return [message]
    try:
        if message.format == "line":
            bodies, lost = _split_lines(message.body, limit)
        elif message.body.lstrip().startswith(b"["):
            bodies, lost = _split_array(message.body, limit)
        else:
            bodies, lost = split_envelope(message.body, limit)
    except (msgspec.MsgspecError, RecursionError) as error:
        bodies, lost = [], [f"all of it, which can't be split: {error}"]
    if lost:
        logger.error(
            "message %s of %s: the receiver takes at most %d bytes; %s",
            message.kind, message.node, limit, describe_lost(lost),
        )  # fmt: skip
    return _make_parts(message, bodies)


def halve_message(message: Message) -> list[Message]:
    """Return two messages with half of the records each, and ids as in `split_message`.

    The list is empty for a message with one record, or if halving is impossible.
    """
    try:
        if message.format == "line":
            lines = message.body.splitlines(keepends=True)
            bodies = [b"".join(half) for half in halve(lines)]
        elif message.body.lstrip().startswith(b"["):
            items = [*map(bytes, decode_list(message.body))]
            bodies = [b"[" + b",".join(half) + b"]" for half in halve(items)]
        else:
            bodies = halve_envelope(message.body)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return _make_parts(message, bodies)


def _split_lines(body: bytes, limit: int) -> SplitBodies:
    lines: list[bytes] = []
    lost: list[str] = []
    for line in body.removesuffix(b"\n").split(b"\n"):
        if len(line) < limit:
            lines.append(line + b"\n")
        else:
            lost.append(f"line {shorten(line.partition(b' ')[0].decode('utf-8', 'replace'))}")
    return SplitBodies([b"".join(part) for part in group(lines, limit, 0)], lost)


def _split_array(body: bytes, limit: int) -> SplitBodies:
    items, lost = select_fitting(decode_list(body), limit - 2, "element")
    # The last element of a part is not followed by a comma.
    return SplitBodies([b"[" + b",".join(part) + b"]" for part in group(items, limit - 1, 1)], lost)


def _make_parts(message: Message, bodies: list[bytes]) -> list[Message]:
    return [
        msgspec.structs.replace(
            message, body=body, id=f"{message.id}-{number}" if message.id else ""
        )
        for number, body in enumerate(bodies, 1)
    ]
