"""Findings for people, and for programs."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ccagent.doctor.examination import stopped
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.finding import Finding

_COLOURS = {"good": "32", "missing": "33", "problem": "31"}
_UNLIMITED = 1_000_000


def report(findings: Sequence[Finding], agents: Sequence[str], *, width: int = 0) -> str:
    """Write the findings by area, one a line, and below it what it costs and what to do.

    agents: those that count. width: of a terminal, for which it is coloured and wrapped; 0: none.
    """
    column = max((len(finding.subject) for finding in findings), default=0)
    lines: list[str] = []
    for area, group in groupby(findings, key=lambda finding: finding.area):
        lines.append(_bold(area, width))
        for finding in group:
            lines += _entry(finding, min(column, 32), width)
        lines.append("")
    lines.append(summary(findings, agents))
    return "\n".join(lines) + "\n"


def summary(findings: Sequence[Finding], agents: Sequence[str]) -> str:
    """Say in a line who can work."""
    names = stopped(findings)
    less = [
        name
        for name in agents
        if f"agent {name}" not in names
        and any(
            finding.state == "problem" and cost.startswith((f"{name}: ", "all: "))
            for finding in findings
            for cost in finding.costs
        )
    ]
    fully = [name for name in agents if name not in less and f"agent {name}" not in names]
    parts: list[str] = []
    if names:
        parts.append(f"can't work: {', '.join(names)}")
    if less:
        parts.append(f"work with less: {', '.join(less)}")
    if fully:
        parts.append(f"work: {', '.join(fully)}")
    return printable("; ".join(parts) or "nothing is configured")


def as_json(findings: Sequence[Finding]) -> bytes:
    """Give an array of objects with the fields of a finding."""
    try:
        content = msgspec.json.encode(findings)
    except UnicodeEncodeError:
        content = msgspec.json.encode([_encodable(finding) for finding in findings])
    return msgspec.json.format(content, indent=2)


def exit_status(findings: Sequence[Finding]) -> int:
    """Give 1 if something that is configured can't work, else 0."""
    return int(bool(stopped(findings)))


def _encodable(finding: Finding) -> Finding:
    """Replace what was no UTF-8 in names of files."""

    def clean(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    return msgspec.structs.replace(
        finding,
        subject=clean(finding.subject),
        found=clean(finding.found),
        costs=list(map(clean, finding.costs)),
        stops=list(map(clean, finding.stops)),
        advice=clean(finding.advice),
    )


def _entry(finding: Finding, column: int, width: int) -> Iterator[str]:
    state = f"{finding.state:<7}"
    if width:
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    subject = printable(finding.subject)
    indent = " " * (13 + column)
    first, *rest = _wrapped(printable(finding.found), width, len(indent))
    yield f"  {state}  {subject:<{column}}  {first}"
    yield from (indent + line for line in rest)
    for title, text in (
        ("costs", "; ".join(finding.costs)),
        ("stops", ", ".join(finding.stops)),
        ("to do", finding.advice),
    ):
        if text:
            first, *rest = _wrapped(printable(text), width, len(indent) + 7)
            yield f"{indent}{title}: {first}"
            yield from (f"{indent}       {line}" for line in rest)


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    room = max(30, width - indent) if width else _UNLIMITED
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _bold(text: str, width: int) -> str:
    return f"\x1b[1m{text}\x1b[0m" if width else text
