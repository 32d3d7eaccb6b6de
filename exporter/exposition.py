"""Metric families and their text. Names and labels of lines are kept between scrapes.

Source: prometheus/docs, instrumenting/exposition_formats.md and specs/om/open_metrics_spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import ClassVar, Literal, NamedTuple

Kind = Literal["counter", "gauge", "untyped", "histogram", "summary"]
Labels = tuple[str, ...]


class Columns(NamedTuple):
    """Label values and numbers of many samples; both have the same length."""

    labels: Sequence[Labels]
    values: Sequence[float]


Rows = Iterable[tuple[Labels, float]] | Columns
"""Pairs of label values and number. The values are in the order of the family's label names."""
FamilyRows = tuple["Family", Rows]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_UNITS = (
    "seconds", "bytes", "joules", "celsius", "hertz", "watts", "volts", "amperes", "ratio",
)  # fmt: skip
_TOTAL, _CREATED = "_total", "_created"
_BOUND = re.compile(r'(?:^|,)(?:le|quantile)="[^"]*"')


class Family:
    """A metric family.

    name: of its samples, including a suffix `_total`. help: a sentence. labels: label names.
    text_head: the lines HELP and TYPE of the text format 0.0.4.
    """

    __slots__ = ("_openmetrics", "help", "kind", "labels", "name", "text_head")

    _also: ClassVar[dict[int, str]] = {}

    def __init__(self, name: str, kind: Kind, text: str, labels: Labels = ()) -> None:
        if not all(map(_NAME.fullmatch, (name.translate(self._also), *labels))):
            raise ValueError(f"{name!r} with {labels}: letters, digits and '_' only")
        self.name = name
        self.kind: Kind = kind
        self.help = text
        self.labels = labels
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
        self.text_head = f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
        self._openmetrics = ""

    def __repr__(self) -> str:
        """Return the name and the labels."""
        return f"Family({self.name}{{{','.join(self.labels)}}})"

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


def name_family(kind: Kind, name: str, text: str) -> Family | None:
    """Return a family named after the kernel's name; None if the name is invalid."""
    return Family(name, kind, text) if _NAME.fullmatch(name) else None


_UNFIT = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
"""Control characters and line separators: a parser may take them for the end of a line or text.
Surrogates: they stand for bytes that are not UTF-8.
"""
Block = tuple["Family", str]
"""A family and the text lines of its samples."""


class _Layout(NamedTuple):
    """The families of a collector, and their lines with `%r` in place of the numbers.

    ends: position after the last sample of each family. labels: of all samples. lines: by family.
    pieces: the lines of successive families, and the position after their last shown sample. shown:
    positions of the samples with a line, if some are hidden.
    """

    families: list[Family]
    ends: list[int]
    labels: list[Labels]
    lines: list[str]
    pieces: list[tuple[str, int]]
    shown: tuple[int, ...] | None


_END = "\0"
"""Ends the lines of a family in a piece. No label has it after `clean`."""
_PIECE = 32
"""Samples of a piece. Many families have one sample: formatting each would take longer."""


class SampleEncoder:
    """An encoder for the samples of one collector. Both formats share the lines.

    Lines are built again if the labels differ from those of the last call.
    """

    def __init__(self) -> None:
        self._layout = _Layout([], [], [], [], [], None)
        self._numbers: tuple[float, ...] = ()
        self._texts: list[list[str]] = []

    def encode(self, families: Iterable[FamilyRows]) -> list[Block]:
        """Return the families that have samples, with their lines.

        Of several samples with equal labels after escaping, only the last is kept.
        """
        found: list[Family] = []
        ends: list[int] = []
        labels: list[Labels] = []
        values: list[float] = []
        for family, rows in families:
            if isinstance(rows, list) and len(rows) == 1:  # most families have one sample
                labels.append(rows[0][0])
                values.append(rows[0][1])
                found.append(family)
                ends.append(len(values))
                continue
            columns = rows if isinstance(rows, Columns) else [*zip(*rows, strict=True)]
            if columns and columns[1]:
                labels += columns[0]
                values += columns[1]
                found.append(family)
                ends.append(len(values))
        layout = self._layout
        if layout.ends != ends or layout.families != found or layout.labels != labels:
            layout = self._layout = _lay_out(found, ends, labels, layout)
            self._numbers, self._texts = (), []
        if layout.shown is not None:
            values = [values[place] for place in layout.shown]
        total = sum(values)
        is_finite = total - total == 0
        numbers = tuple(values)
        texts: list[list[str]] = []
        begin = 0
        for place, (lines, end) in enumerate(layout.pieces):
            own = numbers[begin:end]
            if own == self._numbers[begin:end] and self._texts:
                texts.append(self._texts[place])  # many values stay: limits, zeros
            else:
                text = lines % own
                if not is_finite:
                    text = _SPECIAL.sub(lambda found: _SPECIAL_WORDS[found[1]], text)
                texts.append(text.split(_END))
            begin = end
        self._numbers, self._texts = numbers, texts
        return merge_blocks(zip(found, chain.from_iterable(texts), strict=True))


def merge_blocks(blocks: Iterable[Block]) -> list[Block]:
    """Return each family once, with all its lines."""
    found = [*blocks]
    merged = dict(found)
    if len(merged) < len(found):
        merged = dict.fromkeys(merged, "")
        for family, lines in found:
            merged[family] += lines
    return [*merged.items()]


def _lay_out(
    families: list[Family], ends: list[int], labels: list[Labels], before: _Layout
) -> _Layout:
    """Return the layout of samples. Lines that were there before are used again."""
    known: dict[tuple[Family, Labels], str] = {}
    if before.shown is None:
        begin = 0
        for family, lines, end in zip(before.families, before.lines, before.ends, strict=True):
            own = zip(before.labels[begin:end], lines.split("\n"), strict=False)
            known |= {(family, each): line for each, line in own}
            begin = end
    found: list[str] = []
    pieces: list[tuple[str, int]] = []
    shown: list[int] = []
    begin = written = 0
    for family, end in zip(families, ends, strict=True):
        # Different labels may be equal after `escape`, and Prometheus rejects a series twice.
        last: dict[str, int] = {}
        for place in range(begin, end):
            each = labels[place]
            line = known.get((family, each))
            last[line or make_prefix(family, each).replace("%", "%%") + "%r"] = place
        shown += last.values()
        found.append("\n".join([*last, ""]))
        begin = end
        if len(shown) - (pieces[-1][1] if pieces else 0) >= _PIECE or len(found) == len(families):
            pieces.append((_END.join(found[written:]), len(shown)))
            written = len(found)
    hidden = tuple(shown) if len(shown) < begin else None
    return _Layout(families, ends, labels, found, pieces, hidden)


_SPECIAL = re.compile(r"(?<= )(nan|-?inf)$", re.MULTILINE)
_SPECIAL_WORDS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def make_prefix(family: Family, labels: Labels) -> str:
    """Return the line of a sample before its number: `name{label="value"} `."""
    if isinstance(family, WrittenFamily):
        return labels[0]
    if not family.labels:
        return f"{family.name} "
    pairs = zip(family.labels, labels, strict=True)
    return family.name + "{" + ",".join(f'{n}="{escape(v)}"' for n, v in pairs) + "} "


def escape(value: str) -> str:
    """Return a label value, cleaned and escaped for both formats."""
    return escape_help(clean(value))


def clean(text: str) -> str:
    """Return a text with U+FFFD for bytes that are not UTF-8 and for control characters."""
    return text if text.isprintable() else _UNFIT.sub("\ufffd", text)


def join_text(blocks: Iterable[Block]) -> bytes:
    """Return a document in the text format 0.0.4."""
    return "".join([part for f, lines in blocks for part in (f.text_head, lines)]).encode()


def join_openmetrics(blocks: Iterable[Block]) -> bytes:
    """Return a document in OpenMetrics 1.0."""
    found = [*blocks]
    names = {family.name for family, _ in found}
    if any(name.endswith(_CREATED) for name in names):
        found = _join_created(found, names)
    parts: list[str] = []
    for family, lines in found:
        # A counter without its `_total` may clash with another family: lustre_disk_io.
        clashes = family.kind == "counter" and family.name.removesuffix("_total") in names
        parts += (family.unknown_head if clashes else family.openmetrics_head, lines)
    return "".join([*parts, "# EOF\n"]).encode()


def _join_created(blocks: list[Block], names: set[str]) -> list[Block]:
    """Return the blocks with each family NAME_created in the counter, histogram or summary NAME.

    Python's library writes such gauges, scripts leave out the type. A strict reader refuses both.
    """
    created = {
        family.name.removesuffix(_CREATED): (family, lines)
        for family, lines in blocks
        if family.name.endswith(_CREATED) and family.kind in {"gauge", "untyped"}
    }
    joined: list[Block] = []
    used: set[Family] = set()
    for family, lines in blocks:
        base = family.name
        if family.kind == "counter":
            base = base.removesuffix(_TOTAL)
            has_times = base in created and base not in names
        else:
            has_times = base in created and family.kind in {"histogram", "summary"}
        if has_times:
            other, times = created[base]
            used.add(other)
            lines = _group_lines(lines + times)  # noqa: PLW2901
        joined.append((family, lines))
    return [block for block in joined if block[0] not in used]


def _group_lines(lines: str) -> str:
    """Return lines of samples with those of the same labels together, but for le and quantile."""
    groups: dict[str, list[str]] = {}
    for line in lines.split("\n")[:-1]:
        labels = line.rpartition("} ")[0].partition("{")[2]
        groups.setdefault(_BOUND.sub("", labels).strip(","), []).append(f"{line}\n")
    return "".join(chain.from_iterable(groups.values()))
