"""Checks of an agent's requirements on its machine, for `ccagent doctor`.

Each check is beside its reader.
"""

from __future__ import annotations

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


def list_names(node: Node, path: str) -> list[str]:
    """Return the sorted names in a directory; none if listing fails."""
    try:
        return sorted(node.list(path))
    except CcagentError:
        return []


def read_text(node: Node, path: str) -> str:
    """Return the stripped text of a file; empty if reading fails."""
    try:
        return node.read(path).decode("utf-8", "replace").strip()
    except CcagentError:
        return ""
