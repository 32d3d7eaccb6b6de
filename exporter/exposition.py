"""Samples as text. The line prefixes (name and labels) are cached between scrapes.

Source: prometheus/docs, instrumenting/exposition_formats.md and specs/om/open_metrics_spec.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.exporter.family import WrittenFamily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.exporter.family import Family, Labels, Rows

_UNFIT = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
"""Control characters and line separators: a parser may take them for the end of a line or text.
Surrogates: they stand for bytes that are not UTF-8.
"""
_SPARE = 64

Block = tuple["Family", str]
"""A family and the text lines of its samples."""


class SampleEncoder:
    """An encoder for the samples of one collector. Both formats share the lines."""

    def __init__(self) -> None:
        self._prefixes: dict[Family, dict[Labels, str]] = {}

    def encode(self, families: Iterable[tuple[Family, Rows]]) -> list[Block]:
        """Return the families that have samples, with their lines.

        Of several samples with equal labels after escaping, only the last is kept.
        """
        blocks: dict[Family, str] = {}
        for family, rows in families:
            text = self._lines(family, rows)
            if text:
                blocks[family] = blocks.get(family, "") + text
        if len(self._prefixes) > 2 * len(blocks) + _SPARE:
            self._prefixes = {family: self._prefixes[family] for family in blocks}
        return [*blocks.items()]

    def _lines(self, family: Family, rows: Rows) -> str:
        known = self._prefixes.get(family)
        if known is None:
            known = self._prefixes[family] = {}
        # The key is the escaped text: different labels may be equal after `escape`, and Prometheus
        # rejects a scrape that has a series twice.
        lines: dict[str, str] = {}
        for labels, value in rows:
            prefix = known.get(labels)
            if prefix is None:
                prefix = known[labels] = make_prefix(family, labels)
            number = repr(value)
            if number[-1] in "fn":
                number = _special(number)
            lines[prefix] = f"{prefix}{number}\n"
        if len(known) > 2 * len(lines) + _SPARE:  # ended jobs, removed disks
            known.clear()
        return "".join(lines.values())


def _special(number: str) -> str:
    """Return the exposition format's word for `nan`, `inf` or `-inf`."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[number]


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
    return clean(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


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
    parts: list[str] = []
    for family, lines in found:
        # A counter without its `_total` may clash with another family: lustre_disk_io.
        clashes = family.kind == "counter" and family.name.removesuffix("_total") in names
        parts += (family.unknown_head if clashes else family.openmetrics_head, lines)
    return "".join([*parts, "# EOF\n"]).encode()
