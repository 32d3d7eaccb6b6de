"""Bounded parser and writer of YAML for messages of peers, and typed access to their fields.

PyYAML's parser yields events; tags never build Python objects. Every scalar stays text, so a job
`0123` or a core `1:30` keeps its digits.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, cast

import yaml

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UINT = re.compile(r"[0-9]{1,18}|0x[0-9a-fA-F]{1,15}", re.ASCII)
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_SHOWN = 40

Document = str | list["Document"] | dict[str, "Document"] | None
"""Values of a document: text, lists and maps; None for an empty scalar or `null`."""

LARGEST_PAYLOAD = 64 * 1024
"""Maximum bytes of a payload."""

_MOST_EVENTS = 20_000
_DEEPEST = 16
_LONGEST_SCALAR = 4096
_LONGEST_SHOWN = 60
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_map(value: Document, where: str) -> dict[str, Document]:
    """Return a map; join a list of one-key maps. Raise UnparsableError for another value.

    A text in such a list is a key without value.
    """
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        raise UnparsableError(f"{where}: expected a map, not {show_value(value)}")
    joined: dict[str, Document] = {}
    for entry in value:
        item = {entry.strip(): None} if isinstance(entry, str) else entry
        if not isinstance(item, dict):
            raise UnparsableError(f"{where}: expected maps in the list, not {show_value(entry)}")
        if clash := joined.keys() & item.keys():
            raise UnparsableError(f"{where}: {show_value(min(clash))} occurs twice")
        joined |= item
    return joined


def to_uint(value: Document, where: str) -> int:
    """Return a non-negative whole number. Raise UnparsableError for another value."""
    if isinstance(value, str) and _UINT.fullmatch(value.strip()):
        text = value.strip()
        return int(text, 16) if text.startswith("0x") else int(text)
    raise UnparsableError(f"{where}: expected a whole number, not {show_value(value)}")


def to_uints(value: Document, where: str, most: int) -> tuple[int, ...]:
    """Return a list of whole numbers; accept a single number. Raise UnparsableError if invalid."""
    values = value if isinstance(value, list) else [value]
    if len(values) > most:
        raise UnparsableError(f"{where}: {len(values)} numbers, at most {most}")
    return tuple(to_uint(number, where) for number in values)


def to_value(value: Document, where: str) -> float | str:
    """Return a finite number, or text. Raise UnparsableError for another value."""
    if not isinstance(value, str):
        raise UnparsableError(f"{where}: expected a number or text, not {show_value(value)}")
    try:
        number = float(value)
    except ValueError:
        return value.strip()
    if not math.isfinite(number):
        raise UnparsableError(f"{where}: {show_value(value)} is not finite")
    return number


def to_flag(value: Document, where: str) -> bool:
    """Return a yes/no value as bool. Raise UnparsableError for another value."""
    text = value.strip().casefold() if isinstance(value, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise UnparsableError(f"{where}: expected yes or no, not {show_value(value)}")


def show_value(value: object) -> str:
    """Return a value for a message: printable, of bounded length."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a map"
    return "nothing" if value is None else ascii(value)[:_SHOWN]


class Fields:
    """The fields of a map, by key; `supported_KPI` and `supported-kpi` are the same key.

    Each method raises UnparsableError with the name of the field.
    """

    def __init__(self, value: Document, where: str = "") -> None:
        self._where = where
        self._values = {_plain(key): field for key, field in as_map(value, where or "it").items()}

    def __contains__(self, key: str) -> bool:
        return self._values.get(_plain(key)) is not None

    def get(self, key: str) -> Document:
        """Return a field; None if it is missing or empty."""
        return self._values.get(_plain(key))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text on one line. A missing field is the default."""
        value = self.get(key)
        if default is not None and value in (None, default):  # fast-lib writes `id: ""` for no id
            return default
        if not isinstance(value, str) or not value.strip():
            raise UnparsableError(f"{self.name(key)}: expected text, not {show_value(value)}")
        if not value.strip().isprintable():
            raise UnparsableError(f"{self.name(key)}: has control characters")
        return value.strip()

    def prose(self, key: str) -> str:
        """Return a text for people, on one line; empty without one."""
        value = self.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise UnparsableError(f"{self.name(key)}: expected text, not {show_value(value)}")
        return "".join(character if character.isprintable() else " " for character in value).strip()

    def uint(self, key: str, default: int | None = None) -> int:
        """Return a non-negative whole number."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        return to_uint(value, self.name(key))

    def optional_uint(self, key: str) -> int | None:
        """Return a non-negative whole number; None if it is missing."""
        return self.uint(key) if key in self else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a yes/no value as bool."""
        value = self.get(key)
        return default if value is None else to_flag(value, self.name(key))

    def maps(self, key: str, most: int) -> list[Fields]:
        """Return a list of maps; a single map is a list of one."""
        value = self.get(key)
        values = value if isinstance(value, list) else [value]
        if value is None or len(values) > most:
            raise UnparsableError(f"{self.name(key)}: expected a list of 1 to {most} maps")
        return [Fields(entry, f"{self.name(key)}[{i}]") for i, entry in enumerate(values)]

    def name(self, key: str) -> str:
        """Return the name of a field in errors."""
        return f"{self._where}.{key}" if self._where else key


def _plain(key: str) -> str:
    return " ".join(key.replace("_", "-").casefold().split())


def parse_document(payload: bytes) -> Document:
    """Parse the first document of a payload. Raise UnparsableError if it is invalid.

    Peers put `---` before and after a document. Text after the first document is ignored. Anchors,
    aliases, tags and duplicate keys are refused.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise UnparsableError(f"{len(payload)} bytes, at most {LARGEST_PAYLOAD} are read")
    try:
        text = payload.decode("utf-8")
        events = _events(text)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                return _value(events, next(events), 0)
    except UnicodeDecodeError:
        raise UnparsableError("not text in UTF-8") from None
    except yaml.YAMLError as error:
        raise UnparsableError(f"not YAML: {_sentence(error)}") from error
    except RecursionError:
        raise UnparsableError("nested too deeply") from None
    return None


def write_document(value: object) -> bytes:
    """Write a document between `---` lines, like the FAST programs."""
    text = cast("Any", yaml).dump(
        value, Dumper=_DUMPER, sort_keys=False, default_flow_style=False, allow_unicode=True
    )
    return f"---\n{text}---\n".encode()


def _events(text: str) -> Iterator[Any]:
    for count, event in enumerate(cast("Any", yaml).parse(text, Loader=_LOADER)):
        if count >= _MOST_EVENTS:
            raise UnparsableError(f"more than {_MOST_EVENTS} parts")
        yield event


def _value(events: Iterator[Any], event: Any, depth: int) -> Document:
    """Return the value that begins with an event."""
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise UnparsableError("anchors and aliases are refused")
    if getattr(event, "tag", None) not in {None, "!"}:
        raise UnparsableError(f"the tag {str(event.tag)[:_LONGEST_SHOWN]!r} is refused")
    if depth > _DEEPEST:
        raise UnparsableError(f"nested more than {_DEEPEST} deep")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        values: list[Document] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            values.append(_value(events, event, depth + 1))
        return values
    mapping: dict[str, Document] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _value(events, event, depth + 1)
        if not isinstance(key, str):
            raise UnparsableError("a key that is not text")
        key = key.strip()
        if key in mapping:
            raise UnparsableError(f"the key {key[:_LONGEST_SHOWN]!r} occurs twice")
        mapping[key] = _value(events, next(events), depth + 1)
    return mapping


def _scalar(event: Any) -> str | None:
    text: str = event.value
    if len(text) > _LONGEST_SCALAR:
        raise UnparsableError(f"a text of {len(text)} characters, at most {_LONGEST_SCALAR}")
    is_plain = bool(event.implicit[0])
    return None if is_plain and text in _NULLS else text


def _sentence(error: yaml.YAMLError) -> str:
    """Return the error of PyYAML in one line."""
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    mark = getattr(error, "problem_mark", None)
    line = f" in line {mark.line + 1}" if mark is not None else ""
    text = "".join(character if character.isprintable() else " " for character in str(problem))
    return f"{text[:_LONGEST_SHOWN]}{line}"
