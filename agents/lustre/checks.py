"""Checks of Lustre: whether this node is a server or a client, and how it can be read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.checks import Check, CheckResult, list_names
from ccagent.machine.program_checks import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.lustre.jobstats.source import JobstatsSource
    from ccagent.machine.node import Node

_AREA = "lustre"
_CLIENT = ("proc/fs/lustre/llite", "sys/fs/lustre/llite")
_SHOWN = 8


def check_lustre(
    node: Node, source: JobstatsSource, *, has_jobstats: bool, statistics: Sequence[str], lctl: str
) -> Iterator[Check]:
    """Yield the checks of an agent with this source and these settings."""
    if has_jobstats:
        find = partial(find_targets, node, source)
        impact = "what jobs read and write"
        yield Check(_AREA, "targets with jobstats", find, impact, is_vital=not statistics)
    if has_jobstats or statistics:
        yield require_program(node, lctl, "what isn't in files that this user may read")
    impact = "statistics of clients" if "llite" in statistics else ""
    yield Check(_AREA, "mounted Lustre", partial(find_clients, node), impact)


def find_targets(node: Node, source: JobstatsSource) -> CheckResult:
    """Return the targets with jobstats. Their texts are not read."""
    errors: list[CcagentError] = []
    targets: list[str] = []
    try:
        targets = [text.name or source.recorded for text in source.texts(node, errors)]
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
