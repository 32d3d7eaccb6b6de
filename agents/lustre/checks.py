"""Checks of Lustre: server or client, and access to its parameters."""

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
        impact = "I/O of jobs"
        yield Check(_AREA, "targets with jobstats", find, impact, is_vital=not statistics)
    if has_jobstats or statistics:
        yield require_program(node, lctl, "parameters without a file readable by this user")
    impact = "statistics of clients" if "llite" in statistics else ""
    yield Check(_AREA, "mounted Lustre", partial(find_clients, node), impact)


def find_targets(node: Node, source: JobstatsSource) -> CheckResult:
    """Return the result for the targets with jobstats, without reading their texts."""
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
            "let this user run lctl as root or read the job_stats files; "
            "`ccagent lustre check` shows more"
        )
        return CheckResult("problem", f"{len(targets)}; {'; '.join(errors)}", fix)
    if targets:
        more = f" and {len(targets) - _SHOWN} more" if len(targets) > _SHOWN else ""
        fix = "run `ccagent lustre check` to see whether data are lost between observations"
        return CheckResult("good", f"{', '.join(targets[:_SHOWN])}{more}", fix)
    return CheckResult(
        "missing", "this node has no targets", "run the agent lustre on an OSS or MDS"
    )


def find_clients(node: Node) -> CheckResult:
    """Return the result for the Lustre file systems mounted on this node."""
    for directory in _CLIENT:
        if names := list_names(node, directory):
            return CheckResult("good", ", ".join(names[:_SHOWN]))
    return CheckResult("missing", "none")
