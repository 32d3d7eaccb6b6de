"""Report of the findings, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ccagent.doctor.examination import list_stopped
from ccagent.log import printable
from ccagent.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.finding import Finding

_COLOURS = {"good": "32", "missing": "33", "problem": "31"}
_UNLIMITED = 1_000_000


def format_report(findings: Sequence[Finding], agents: Sequence[str], *, width: int = 0) -> str:
    """Return the verdict, then the findings by area with impact and fix.

    agents: agents that count. width: columns of a terminal, for colours and line breaks; 0: no
    terminal.
    """
    shown = [finding for finding in findings if not finding.is_for_others]
    column = max((len(finding.subject) for finding in shown), default=0)
    lines = [_embolden(format_verdict(findings, agents), width), ""]
    for area, group in groupby(shown, key=lambda finding: finding.area):
        lines.append(_embolden(area, width))
        for finding in group:
            lines += _format_finding(finding, min(column, 32), width)
        lines.append("")
    if others := list_unconfigured(findings, agents):
        lines += [*_wrap(printable(others), width, 0), ""]
    return "\n".join(lines[:-1]) + "\n"


def format_verdict(findings: Sequence[Finding], agents: Sequence[str]) -> str:
    """Return the verdict. It starts with `ready` if the exit status is 0."""
    stops = list_stopped(findings)
    rest = [name for name in agents if f"agent {name}" not in stops]
    limited = [name for name in rest if _is_limited(name, findings)]
    fully = [name for name in rest if name not in limited]
    names = {"cannot work": stops, "works with limits": limited, "works": fully}
    parts = [f"{title}: {', '.join(each)}" for title, each in names.items() if each]
    state = "not ready" if choose_exit_status(findings) else "ready"
    return printable(f"{state}: {'; '.join(parts) or 'nothing is configured'}")


def list_unconfigured(findings: Sequence[Finding], agents: Sequence[str]) -> str:
    """Return a line on the agents that are not configured, with their missing requirements."""
    lacks: dict[str, list[str]] = {name: [] for name in AGENTS if name not in agents}
    for finding in findings:
        for lost in finding.not_configured:
            lacks.setdefault(lost.partition(":")[0], []).append(finding.subject)
    names = [
        f"{name} (lacks {', '.join(dict.fromkeys(subjects))})" if subjects else name
        for name, subjects in lacks.items()
    ]
    return f"not configured: {', '.join(names)}" if names else ""


def format_json(findings: Sequence[Finding]) -> str:
    """Return an array of objects with the fields of a finding.

    `costs` and `advice` are the old names of `impact` and `fix`. Invalid UTF-8 in file names
    becomes `?`.
    """
    objects = [
        msgspec.structs.asdict(finding) | {"costs": finding.impact, "advice": finding.fix}
        for finding in findings
    ]
    text = json.dumps(objects, ensure_ascii=False, indent=2)
    return text.encode("utf-8", "replace").decode()


def choose_exit_status(findings: Sequence[Finding]) -> int:
    """Return 1 if a configured agent or sink cannot work, else 0."""
    return int(bool(list_stopped(findings)))


def _is_limited(agent: str, findings: Sequence[Finding]) -> bool:
    return any(
        finding.state == "problem" and lost.startswith((f"{agent}: ", "all: "))
        for finding in findings
        for lost in finding.impact
    )


def _format_finding(finding: Finding, column: int, width: int) -> Iterator[str]:
    state = f"{finding.state:<7}"
    if width:
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    subject = printable(finding.subject)
    indent = " " * (13 + column)
    first, *rest = _wrap(printable(finding.found), width, len(indent))
    yield f"  {state}  {subject:<{column}}  {first}"
    yield from (indent + line for line in rest)
    for title, text in (
        ("impact", "; ".join(finding.impact)),
        ("stops", ", ".join(finding.stops)),
        ("fix", finding.fix),
    ):
        if text:
            first, *rest = _wrap(printable(text), width, len(indent) + 8)
            yield f"{indent}{title + ':':7} {first}"
            yield from (f"{indent}        {line}" for line in rest)


def _wrap(text: str, width: int, indent: int) -> list[str]:
    room = max(30, width - indent) if width else _UNLIMITED
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _embolden(text: str, width: int) -> str:
    return f"\x1b[1m{text}\x1b[0m" if width else text
