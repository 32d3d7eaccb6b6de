"""Checks of an agent's requirements on its machine, for `ccagent doctor`.

Each check is beside its reader. Those of several agents are in `requirements.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node


State = Literal["good", "missing", "problem"]


class CheckResult(NamedTuple):
    """The result of a check.

    state: `missing`: does not exist; `problem`: exists, but does not work or does harm. found: the
    observation. fix: the remedy, empty without one.
    """

    state: State
    found: str
    fix: str = ""


class Check(NamedTuple):
    """A check of one requirement of an agent.

    subject: unique; of several checks with one subject only the first is run. find: examines the
    machine; None: nothing to report. A CcagentError is a problem. impact: a phrase for the agent's
    loss without it; empty: none. is_vital: the agent cannot work without it. is_query: asks a
    server, so the check is run only for configured agents.
    """

    area: str
    subject: str
    find: Callable[[], CheckResult | None]
    impact: str = ""
    is_vital: bool = False
    is_query: bool = False


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
