"""Writing lines: nothing that is invalid comes out."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.records.line_protocol.lines import CATEGORIES, SECOND, SIGNED, UNSIGNED, Unsigned
from ccagent.records.points import MOST_DIGITS, NAME, float_text, shortened, without_remainder

if TYPE_CHECKING:
    from ccagent.records.line_protocol.lines import Line, Precision

_REMEMBERED = 4096
_UNSENDABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def encode(line: Line, precision: Precision = "s") -> str:
    """Write a line, tags sorted, without a line break.

    The value of a metric is a number, that of the other categories a string; fields that
    ClusterCockpit doesn't have may be anything. Raises EncodingError for what consumers refuse or
    would take for something else: a bad or empty name or tag, control characters, NaN, infinity,
    an integer out of range.
    """
    name, field = _start(line.measurement, line.field)
    # Tags come again with every tick; they are looked up by what they hold, since it may change.
    tags = _tag_set(tuple(line.tags.items()))
    value = line.value
    if type(value) is float and line.field == "value" and math.isfinite(value):
        text = repr(value)
        if len(text) >= MOST_DIGITS:
            text = without_remainder(value, text)
    else:
        text = _value(line.measurement, line.field, value)
    time = line.time
    if time is None:
        return f"{name}{tags}{field}{text}"
    if type(time) is not int or time not in SIGNED:
        raise EncodingError(f"{name}: time can't be {shortened(time)}")
    if precision == "s":
        time = time // SECOND if time >= 0 else -(-time // SECOND)
    return f"{name}{tags}{field}{text} {time}"


@lru_cache(_REMEMBERED)
def _start(measurement: str, field: str) -> tuple[str, str]:
    """Write measurement and field key, this with what surrounds it."""
    if field in {"value", "event"}:
        if NAME.fullmatch(measurement) is None:
            raise EncodingError(f"name {shortened(measurement)}: letters, digits and '_' only")
    elif measurement.startswith("#"):
        raise EncodingError(f"name {shortened(measurement)}: its line would be a comment")
    if "\\" in field:
        # Readers disagree on what a backslash before an escaped character is in a field's key.
        raise EncodingError(f"field {shortened(field)}: with a backslash")
    name = _checked("name", measurement).replace(",", "\\,").replace(" ", "\\ ")
    return name, f" {_word('field', field)}="


@lru_cache(_REMEMBERED)
def _tag_set(tags: tuple[tuple[str, str], ...]) -> str:
    return "".join(f",{_word('tag', key)}={_word('tag', value)}" for key, value in sorted(tags))


def _word(what: str, text: str) -> str:
    """Escape a key or the value of a tag."""
    return _checked(what, text).replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")


def _checked(what: str, text: str) -> str:
    if not text or not text.isprintable() or text.endswith("\\"):
        raise EncodingError(
            f"{what} {shortened(text)}: empty, with control characters or a final backslash"
        )
    return text


def _value(measurement: str, field: str, value: object) -> str:
    text = ""
    if isinstance(value, str):
        if field != "value" and _UNSENDABLE.search(value) is None:
            text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            text = '"' + text.replace("\r", "\\r").replace("\t", "\\t") + '"'
    elif field not in CATEGORIES or (field == "value" and not isinstance(value, bool)):
        text = _bare(value)
    if not text:
        raise EncodingError(f"{measurement}: {field} can't be {shortened(value)}")
    return text


def _bare(value: object) -> str:
    """Write a number or boolean; nothing for what can't be written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # A range looks for an instance of a subclass in all its numbers.
        number = int(value)
        if isinstance(value, Unsigned):
            return f"{number}u" if number in UNSIGNED else ""
        return f"{number}i" if number in SIGNED else ""
    if isinstance(value, float) and math.isfinite(value):
        return float_text(value)
    return ""
