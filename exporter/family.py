"""Metric families: name, type, help and label names; rows of label values and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Literal

Kind = Literal["counter", "gauge", "untyped", "histogram", "summary"]
Labels = tuple[str, ...]
Rows = Iterable[tuple[Labels, float]]
"""Pairs of label values and number. The values are in the order of the family's label names."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_UNITS = (
    "seconds", "bytes", "joules", "celsius", "hertz", "watts", "volts", "amperes", "ratio",
)  # fmt: skip
_TOTAL = "_total"


class Family:
    """A metric family.

    name: of its samples, including a suffix `_total`. help: a sentence. labels: label names.
    """

    __slots__ = ("_openmetrics", "_text", "help", "kind", "labels", "name")

    _also: ClassVar[dict[int, str]] = {}

    def __init__(self, name: str, kind: Kind, text: str, labels: Labels = ()) -> None:
        if not all(map(_NAME.fullmatch, (name.translate(self._also), *labels))):
            raise ValueError(f"{name!r} with {labels}: letters, digits and '_' only")
        self.name = name
        self.kind: Kind = kind
        self.help = text
        self.labels = labels
        self._text = ""
        self._openmetrics = ""

    def __repr__(self) -> str:
        """Return the name and the labels."""
        return f"Family({self.name}{{{','.join(self.labels)}}})"

    @property
    def text_head(self) -> str:
        """Return the lines HELP and TYPE of the text format 0.0.4."""
        if not self._text:
            text = self.help.replace("\\", "\\\\").replace("\n", "\\n")
            self._text = f"# HELP {self.name} {text}\n# TYPE {self.name} {self.kind}\n"
        return self._text

    @property
    def unknown_head(self) -> str:
        """Return the lines TYPE and HELP of OpenMetrics 1.0 with the type unknown."""
        return f"# TYPE {self.name} unknown\n# HELP {self.name} {escape_help(self.help)}\n"

    @property
    def openmetrics_head(self) -> str:
        """Return the lines TYPE, UNIT and HELP of OpenMetrics 1.0.

        A counter without `_total` gets the type unknown. As a counter OpenMetrics would require
        another name, and the name of the series would depend on the format.
        """
        if not self._openmetrics:
            name, kind = self.name, self.kind if self.kind != "untyped" else "unknown"
            if kind == "counter":
                if name.endswith(_TOTAL):
                    name = name.removesuffix(_TOTAL)
                else:
                    kind = "unknown"
            lines = [f"# TYPE {name} {kind}"]
            unit = name.rpartition("_")[2]
            if unit in _UNITS:
                lines.append(f"# UNIT {name} {unit}")
            lines.append(f"# HELP {name} {escape_help(self.help)}")
            self._openmetrics = "\n".join(lines) + "\n"
        return self._openmetrics


class WrittenFamily(Family):
    """A family of a text file. Its rows have line prefixes in place of label values."""

    __slots__ = ()

    _also: ClassVar[dict[int, str]] = {ord(":"): "_"}


def escape_help(text: str) -> str:
    """Return a help text escaped for OpenMetrics."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def counter(name: str, text: str, *labels: str) -> Family:
    """Return a family of type counter."""
    return Family(name, "counter", text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    """Return a family of type gauge."""
    return Family(name, "gauge", text, labels)


def untyped(name: str, text: str, *labels: str) -> Family:
    """Return a family whose source does not declare counter or gauge."""
    return Family(name, "untyped", text, labels)


class FamilyTable:
    """Families named after the kernel's names. They are created on demand, at most `most`."""

    def __init__(self, kind: Kind, name: str, text: str, *labels: str, most: int = 2000) -> None:
        self._kind: Kind = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._most = most
        self._known: dict[str, Family | None] = {}

    def get(self, part: str) -> Family | None:
        """Return the family with `part` in place of `{}` in name and help.

        Return None if `part` is invalid in a metric name, or the table is full.
        """
        try:
            return self._known[part]
        except KeyError:
            pass
        if len(self._known) >= self._most:
            return None
        family = None
        if re.fullmatch(r"\w+", part, re.ASCII):
            family = Family(
                self._name.format(part), self._kind, self._text.format(part), self._labels
            )
        self._known[part] = family
        return family
