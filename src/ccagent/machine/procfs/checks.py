"""Check of the files of /proc that describe the whole node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.checks import Check, CheckResult

if TYPE_CHECKING:
    from ccagent.machine.node import Node


def require_proc(node: Node, impact: str = "", *, is_vital: bool = False) -> Check:
    """Return the check that the files can be read."""
    return Check("processes", "/proc", partial(find_proc, node), impact, is_vital)


def find_proc(node: Node) -> CheckResult:
    """Return the result: good, or the files that can't be read."""
    errors: list[str] = []
    for path in ("proc/stat", "proc/meminfo", "proc/loadavg"):
        try:
            node.read(path)
        except CcagentError as error:
            errors.append(str(error))
    if errors:
        fix = "mount /proc without subset=pid; in a service: ProcSubset=all"
        return CheckResult("problem", "; ".join(errors), fix)
    return CheckResult("good", "stat, meminfo and loadavg can be read")
