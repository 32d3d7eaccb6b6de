"""A parser for the text format 0.0.4 in files of a textfile collector.

Source: prometheus/docs, instrumenting/exposition_formats.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.exporter.exposition import clean, escape

if TYPE_CHECKING:
    from ccagent.exporter.family import Kind

_KINDS: dict[str, Kind] = {
    "counter": "counter", "gauge": "gauge", "untyped": "untyped", "histogram": "histogram",
    "summary": "summary",
}  # fmt: skip
_SUFFIXES: dict[str, frozenset[Kind]] = {
    "_bucket": frozenset({"histogram"}),
    "_sum": frozenset({"histogram", "summary"}),
    "_count": frozenset({"histogram", "summary"}),
}
"""Suffixes of sample names, and the family types that use them."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\[n"\\])*)"\s*', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan",
    re.ASCII | re.IGNORECASE,
)
_EXACT = 2**53


class TextFamily(NamedTuple):
    """A family of a text. samples: numbers by line prefix `name{labels} `. help: "" if none."""

    kind: Kind
    help: str
    samples: dict[str, float]


def parse_text(text: str) -> dict[str, TextFamily]:
    """Return the families of a text by name.

    Raise UnparsableError with the line's number for invalid text, and for time stamps: a scrape
    has current values.
    """
    if text and not text.endswith("\n"):
        raise UnparsableError("the last line has no line break: the file may be incomplete")
    reader = _TextReader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.take(line.strip(" \t\r"))
        except UnparsableError as error:
            raise UnparsableError(f"line {number}: {error}") from None
    return {name: family for name, family in reader.families.items() if family.samples}


class _TextReader:
    """A parser of single lines that collects families."""

    def __init__(self) -> None:
        self.families: dict[str, TextFamily] = {}

    def take(self, line: str) -> None:
        """Parse a stripped line. Raise UnparsableError if it is invalid."""
        if not line:
            return
        if line.startswith("#"):
            self._take_comment(line)
            return
        found = _NAME.match(line)
        if found is None:
            raise UnparsableError("no metric name")
        labels, rest = _parse_labels(line[found.end() :].lstrip(" \t"))
        words = rest.split()
        if len(words) == 2:
            raise UnparsableError("time stamps are not allowed")
        if len(words) != 1 or not _NUMBER.fullmatch(words[0]):
            raise UnparsableError("no number")
        prefix = f"{found[0]}{labels} "
        samples = self._family_of(found[0]).samples
        if prefix in samples:
            raise UnparsableError(f"{prefix.strip()} occurs twice")
        number = float(words[0])
        samples[prefix] = int(number) if number.is_integer() and abs(number) < _EXACT else number

    def _take_comment(self, line: str) -> None:
        words = line.split(None, 3)
        if len(words) < 3 or words[0] != "#" or words[1] not in {"HELP", "TYPE"}:
            return
        name, text = words[2], words[3] if len(words) > 3 else ""
        if not _NAME.fullmatch(name):
            raise UnparsableError("no metric name")
        known = self.families.get(name) or TextFamily("untyped", "", {})
        if words[1] == "HELP":
            known = known._replace(help=clean(_ESCAPED.sub(_unescape, text)))
        elif text not in _KINDS:
            raise UnparsableError(f"{text!r} is not a type")
        elif known.samples:
            raise UnparsableError("TYPE after the family's samples")
        else:
            known = known._replace(kind=_KINDS[text])
        self.families[name] = known

    def _family_of(self, name: str) -> TextFamily:
        for suffix, kinds in _SUFFIXES.items():
            known = self.families.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if known is not None and known.kind in kinds:
                return known
        return self.families.setdefault(name, TextFamily("untyped", "", {}))


def _parse_labels(text: str) -> tuple[str, str]:
    """Return the labels, sorted, escaped and without empty values, and the text after them."""
    if not text.startswith("{"):
        return "", text
    labels: dict[str, str] = {}
    position = 1
    while not text.startswith("}", position):
        found = _LABEL.match(text, position)
        if found is None or found[1] in labels or found[1] == "__name__":
            raise UnparsableError("a label is malformed")
        labels[found[1]] = escape(_ESCAPED.sub(_unescape, found[2]))
        position = found.end()
        if text.startswith(",", position):
            position += 1
            while text.startswith((" ", "\t"), position):
                position += 1
        elif not text.startswith("}", position):
            raise UnparsableError("a label is malformed")
    pairs = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if value)
    return f"{{{pairs}}}" if pairs else "", text[position + 1 :]


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
