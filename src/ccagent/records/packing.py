"""Packing of encoded records into parts of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.records.line_protocol.encoding import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonObject = dict[str, msgspec.Raw]
"""An object whose values are not decoded."""

_NAMES = (("job_id", "job_step"), ("pid", "cmd"), ("name",), ("names",), ("detail",))
"""Fields that identify a record in the log."""

decode_object = msgspec.json.Decoder(JsonObject).decode
decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class SplitBodies(NamedTuple):
    """The bodies of the parts, and a phrase for each record that does not fit in any part."""

    bodies: list[bytes]
    lost: list[str]


def halve(items: list[bytes]) -> list[list[bytes]]:
    """Return the two halves of a list; none for fewer than two items."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def describe_lost(lost: list[str]) -> str:
    """Return a phrase for the log about omitted records."""
    if len(lost) == 1:
        return f"left out: {lost[0]}"
    return f"{len(lost)} records are left out, the first: {lost[0]}"


def pack(sizes: Iterable[int], first_room: int, room: int) -> list[int]:
    """Return the number of items in each part, in their order.

    first_room, room: bytes for items in the first part and in each other part. No item may be
    larger than `room`.
    """
    counts = [0]
    left = first_room
    for size in sizes:
        if size > left:
            counts.append(0)
            left = room
        counts[-1] += 1
        left -= size
    return counts


def group(items: list[bytes], room: int, separator: int) -> Iterable[list[bytes]]:
    """Return the items in parts of at most `room` bytes. separator: bytes after each item."""
    begin = 0
    for count in pack((len(item) + separator for item in items), room, room):
        if count:
            yield items[begin : begin + count]
        begin += count


def select_fitting(items: list[msgspec.Raw], room: int, what: str) -> tuple[list[bytes], list[str]]:
    """Return the items of at most `room` bytes, and phrases for larger items."""
    fitting: list[bytes] = []
    lost: list[str] = []
    for item in map(bytes, items):
        if len(item) <= room:
            fitting.append(item)
        else:
            lost.append(f"{what} {_name_record(item)}")
    return fitting, lost


def _name_record(item: bytes) -> str:
    """Return the name of a record from its fields, else its first bytes."""
    if item.startswith(b"{"):
        fields = decode_object(item)
        for keys in _NAMES:
            if keys[0] in fields:
                values = (bytes(fields[key]) for key in keys if key in fields)
                return " ".join(shorten(value.decode("utf-8", "replace")) for value in values)
    return shorten(item.decode("utf-8", "replace"))
