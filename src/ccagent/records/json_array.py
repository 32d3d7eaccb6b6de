"""A record that is a JSON array of flat objects, such as the records of Lustre's jobstats."""

from __future__ import annotations

import msgspec


class JsonArray(msgspec.Struct, frozen=True):
    """kind: of the message. items: the objects, each with strings as names of its fields."""

    kind: str
    items: list[dict[str, str | int | float | bool | None]]
