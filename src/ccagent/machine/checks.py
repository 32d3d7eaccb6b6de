"""Checks of what an agent needs of its machine, for `ccagent doctor`.

Each stands in a file beside the reader that it is about, which only the doctor imports.
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

    state: `missing` is not there, `problem` is there and does not work, or does harm. found: what
    was seen. fix: what to do, empty if there is nothing.
    """

    state: State
    found: str
    fix: str = ""


class Check(NamedTuple):
    """Something that an agent needs.

    subject: unique; of several checks with one subject only the first is run. find: looks at the
    machine; None: nothing to report. A CcagentError is a problem. impact: what the agent loses
    without it, in half a sentence; empty: nothing. is_vital: without it the agent cannot work.
    is_query: asks a server, so it is run only for configured agents.
    """

    area: str
    subject: str
    find: Callable[[], CheckResult | None]
    impact: str = ""
    is_vital: bool = False
    is_query: bool = False


def list_names(node: Node, path: str) -> list[str]:
    """Return the sorted names in a directory, none if it cannot be listed."""
    try:
        return sorted(node.list(path))
    except CcagentError:
        return []


def read_text(node: Node, path: str) -> str:
    """Return the text of a file without space around it, empty if it cannot be read."""
    try:
        return node.read(path).decode("utf-8", "replace").strip()
    except CcagentError:
        return ""
