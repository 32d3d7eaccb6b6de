"""Checks of Lustre: whether this node is a server or a client, and how it can be read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.checks import Check, CheckResult, list_names
from ccagent.machine.program_checks import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.lustre.agent import LustreSettings
    from ccagent.agents.lustre.jobstats.source import JobstatsSource
    from ccagent.machine.node import Node

_AREA = "lustre"
_CLIENT = ("proc/fs/lustre/llite", "sys/fs/lustre/llite")
_SHOWN = 8


def check_lustre(node: Node, settings: LustreSettings, source: JobstatsSource) -> Iterator[Check]:
    """Yield the checks of an agent with these settings."""
    if settings.jobstats:
        is_vital = not settings.statistics
        find = partial(find_targets, node, source, settings.input)
        impact = "what jobs read and write"
        yield Check(_AREA, "targets with jobstats", find, impact, is_vital)
    if settings.jobstats or settings.statistics:
        yield require_program(node, settings.lctl, "what isn't in files that this user may read")
    impact = "statistics of clients" if "llite" in settings.statistics else ""
    yield Check(_AREA, "mounted Lustre", partial(find_clients, node), impact)


def find_targets(node: Node, source: JobstatsSource, recorded: str) -> CheckResult:
    """Return the targets with jobstats. Their texts are not read. recorded: `input`, or empty."""
    errors: list[CcagentError] = []
    targets: list[str] = []
    try:
        targets = [text.name or recorded for text in source.texts(node, errors)]
    except NotHereError:
        pass
    except CcagentError as error:
        errors.append(error)
    return assess_targets(targets, list(dict.fromkeys(map(str, errors))))


def assess_targets(targets: Sequence[str], errors: Sequence[str]) -> CheckResult:
    """Return the result for the targets of this server."""
    if errors:
        fix = (
            "let this user run lctl as root does, or read the job_stats files; "
            "`ccagent lustre check` shows more"
        )
        return CheckResult("problem", f"{len(targets)}; {'; '.join(errors)}", fix)
    if targets:
        more = f" and {len(targets) - _SHOWN} more" if len(targets) > _SHOWN else ""
        fix = "`ccagent lustre check` shows whether anything is lost between observations"
        return CheckResult("good", f"{', '.join(targets[:_SHOWN])}{more}", fix)
    return CheckResult(
        "missing", "this node serves none", "the agent lustre belongs on an OSS or MDS"
    )


def find_clients(node: Node) -> CheckResult:
    """Return the file systems of Lustre that are mounted here."""
    for directory in _CLIENT:
        if names := list_names(node, directory):
            return CheckResult("good", ", ".join(names[:_SHOWN]))
    return CheckResult("missing", "none")
