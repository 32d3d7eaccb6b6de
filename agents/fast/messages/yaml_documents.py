"""Bounded parser and writer of YAML for messages of peers.

PyYAML's parser yields events; tags never build Python objects. Every scalar stays text, so a job
`0123` or a core `1:30` keeps its digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import yaml

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

Document = str | list["Document"] | dict[str, "Document"] | None
"""Values of a document: text, lists and maps; None for an empty scalar or `null`."""

LARGEST_PAYLOAD = 64 * 1024
"""Maximum bytes of a payload."""

_MOST_EVENTS = 20_000
_DEEPEST = 16
_LONGEST_SCALAR = 4096
_SHOWN = 60
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parse_document(payload: bytes) -> Document:
    """Parse the first document of a payload. Raise UnparsableError if it is invalid.

    Peers put `---` before and after a document. Text after the first document is ignored. Anchors,
    aliases, tags and duplicate keys are refused.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise UnparsableError(f"{len(payload)} bytes, at most {LARGEST_PAYLOAD} are read")
    try:
        text = payload.decode("utf-8")
        return _Builder(_events(text)).build()
    except UnicodeDecodeError:
        raise UnparsableError("not text in UTF-8") from None
    except yaml.YAMLError as error:
        raise UnparsableError(f"not YAML: {_sentence(error)}") from error
    except RecursionError:
        raise UnparsableError("nested too deeply") from None


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


class _Builder:
    """Builds the first document from a stream of events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events

    def build(self) -> Document:
        """Return the first document; None without one."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                return self._value(next(self._events), 0)
        return None

    def _value(self, event: Any, depth: int) -> Document:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UnparsableError("anchors and aliases are refused")
        if getattr(event, "tag", None) not in {None, "!"}:
            raise UnparsableError(f"the tag {str(event.tag)[:_SHOWN]!r} is refused")
        if depth > _DEEPEST:
            raise UnparsableError(f"nested more than {_DEEPEST} deep")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            found: list[Document] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                found.append(self._value(event, depth + 1))
            return found
        return self._map(depth)

    def _map(self, depth: int) -> dict[str, Document]:
        found: dict[str, Document] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise UnparsableError("a key that is not text")
            key = key.strip()
            if key in found:
                raise UnparsableError(f"the key {key[:_SHOWN]!r} occurs twice")
            found[key] = self._value(next(self._events), depth + 1)
        return found


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
    place = f" in line {mark.line + 1}" if mark is not None else ""
    text = "".join(each if each.isprintable() else " " for each in str(problem))
    return f"{text[:_SHOWN]}{place}"
