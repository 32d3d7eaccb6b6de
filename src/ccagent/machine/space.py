"""Space of mounted file systems. One that hangs only loses its own values."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from ccagent.machine.node import Node

_PATIENCE = 0.05
"""Seconds for which a mount may delay the next ones. They then continue in a new thread."""


class _Round:
    """A thread that calls statvfs(3) for mount points in turn. It ends after a call that hung."""

    def __init__(self, node: Node, points: Sequence[str]) -> None:
        self.answers: dict[str, os.statvfs_result | CcagentError] = {}
        self.is_abandoned = False
        self._points = points
        self.call = BackgroundCall(partial(self._run, node), "statvfs")

    def _run(self, node: Node) -> None:
        for point in self._points:
            if self.is_abandoned:
                return
            try:
                self.answers[point] = node.space(point.lstrip("/"))
            except CcagentError as error:
                self.answers[point] = error


class SpaceQueries:
    """Calls of statvfs(3). A hanging mount is asked again after it has answered.

    most: maximum of mounts that hang in a thread each. problems: of the last `ask`.
    """

    def __init__(self, most: int) -> None:
        self.problems: list[str] = []
        self._most = most
        self._hanging: dict[str, _Round] = {}
        self._answering: set[str] = set()

    def ask(
        self, node: Node, points: Iterable[str], seconds: float
    ) -> dict[str, os.statvfs_result | CcagentError]:
        """Return the answers by mount point, within about `seconds`.

        Queries of one snapshot of the node share answers. Mounts that answered last time come
        first: the many mounts of a dead server must not delay the others.
        """
        deadline = time.monotonic() + seconds
        self.problems = []
        self._hanging = {p: query for p, query in self._hanging.items() if not query.call.is_done}
        left = [*dict.fromkeys(points)]
        self.problems += [
            f"{escape(point)}: hangs; skipped until it answers"
            for point in left
            if point in self._hanging
        ]
        left = [point for point in left if point not in self._hanging]
        left.sort(key=lambda point: point not in self._answering)
        parsed: dict[Any, Any] = {} if node.parsed is None else node.parsed
        answers: dict[str, os.statvfs_result | CcagentError] = {
            point: parsed[point, SpaceQueries] for point in left if (point, SpaceQueries) in parsed
        }
        left = [point for point in left if point not in answers]
        late: dict[str, _Round] = {}
        while left:
            if len(self._hanging) + len(late) >= self._most:
                skipped = [point for point in left if point not in self._answering]
                left = [point for point in left if point in self._answering]
                if skipped:
                    more = f"{len(skipped)} more are skipped, since {self._most} hang"
                    self.problems.append(more)
            try:
                query = _Round(node, left)
            except CcagentError as error:
                self.problems.append(str(error))
                break
            is_done = query.call.wait(min(_PATIENCE, seconds))
            query.is_abandoned = True
            answers |= dict(query.answers)
            left = [point for point in left if point not in answers]
            if is_done or not left:
                break
            late[left.pop(0)] = query
        for point, query in late.items():
            if query.call.wait(deadline - time.monotonic()):
                answers[point] = query.answers.get(point, NotHereError("no answer"))
            else:
                self._hanging[point] = query
                limit = f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
                self.problems.append(f"{escape(point)}: no answer within {limit}")
        parsed |= {(point, SpaceQueries): answer for point, answer in answers.items()}
        self._answering = {
            p for p, answer in answers.items() if not isinstance(answer, CcagentError)
        }
        return answers


def escape(point: str) -> str:
    """Return a text with control characters escaped: a mount point may contain line breaks."""
    return point.encode("unicode_escape").decode("ascii")
