"""Records in the form of a JSON array of flat objects, such as those of Lustre's jobstats."""

from __future__ import annotations

from ccagent.records.json_encoding import encode_value
from ccagent.records.message import JsonRecord


class JsonArray(JsonRecord, frozen=True):
    """An array. kind: the kind of its message. items: the objects."""

    kind: str
    items: list[dict[str, str | int | float | bool | None]]

    def label(self) -> str:
        """Return the array's name in the log."""
        return f"a part of {self.kind}"

    def encode_json(self) -> tuple[str, bytes, list[str]]:
        """Return kind and JSON of the message, and a phrase for each omitted part."""
        body, lost = encode_value(self.items, has_null=True)
        return self.kind, body, lost
