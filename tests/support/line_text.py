"""Lines as text: those of records, and any others that the decoder is to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.records.line_protocol import Line
    from ccagent.records.message import LineRecord


def line(record: LineRecord) -> str:
    """Return the line that a record becomes. Raises EncodingError."""
    return record.encode_line()[1]


def written(line: Line) -> str:
    """Return a line as the specification has it, its time in nanoseconds; nothing is checked."""
    tags = "".join(f",{_word(key)}={_word(value)}" for key, value in sorted(line.tags.items()))
    name = line.measurement.replace(",", "\\,").replace(" ", "\\ ")
    time = "" if line.time is None else f" {line.time}"
    return f"{name}{tags} {_word(line.field)}={_value(line.value)}{time}"


def _word(text: str) -> str:
    for character in ",= ":
        text = text.replace(character, f"\\{character}")
    return text


def _value(value: float | str) -> str:
    if isinstance(value, str):
        for character, letter in zip('\\"\n\r\t', '\\"nrt', strict=True):
            value = value.replace(character, f"\\{letter}")
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value}{'i' if value < 2**63 else 'u'}"
    return repr(value)
