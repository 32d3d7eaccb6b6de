"""Topic tree: topics of one node, and the kind of a message by its topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.fast.messages.decoding import Subject

_LONGEST = 1000
_UNUSABLE = re.compile(r"[+#\0{}]")
_FILTER = re.compile(r"(?:[^+#\0{}/]*|\+)(?:/(?:[^+#\0{}/]*|\+))*(?:/#)?")
_JOB = re.compile(r"[A-Za-z0-9_.+\-\[\]]{1,64}", re.ASCII)


class Topic(NamedTuple):
    """Topic of a message. hint: last level. job: job of an application."""

    subject: Subject
    hint: str = ""
    job: str = ""


class FastTopics:
    """Topics of one node below a root. accepted: filters for topics of tasks."""

    def __init__(self, root: str, node: str, accepted: Sequence[str] = ()) -> None:
        self._root = root
        agent = f"{root}/agent/{node}"
        self.status = f"{agent}/status"
        self.bandwidth_request = f"{agent}/mmbwmon/request"
        self.bandwidth_response = f"{agent}/mmbwmon/response"
        self.machine_result = f"{root}/migfra/{node}/result"
        filters = [topic.replace("{topic}", root).replace("{node}", node) for topic in accepted]
        self.tasks = filters or [f"{agent}/task/#"]
        self._tasks = [_pattern(topic) for topic in self.tasks]
        self._application = re.compile(re.escape(f"{root}/application/") + r"([^/]+)/(status|KPIs)")

    def fixed(self) -> list[str]:
        """Return the filters to subscribe to, independent of jobs."""
        return [*self.tasks, self.machine_result, self.bandwidth_request]

    def of_job(self, job: str) -> list[str]:
        """Return the filters of an application; `+` means all. Return none for an invalid name."""
        if job != "+" and not _JOB.fullmatch(job):
            return []
        return [f"{self._root}/application/{job}/{level}" for level in ("status", "KPIs")]

    def find(self, topic: str) -> Topic | None:
        """Return the kind of a topic; None for a topic without subscription."""
        if topic == self.bandwidth_request:
            return Topic("bandwidth request", "request")
        if topic == self.machine_result:
            return Topic("machine result")
        match = self._application.fullmatch(topic)
        if match is not None:
            kind: Subject = "application status" if match[2] == "status" else "application kpis"
            return Topic(kind, "", match[1])
        if any(task.fullmatch(topic) for task in self._tasks):
            return Topic("agent task", topic.rpartition("/")[2])
        return None


def check_root(root: str, table: str) -> None:
    """Raise ConfigurationError for an invalid root of the topic tree in a table."""
    if not root or _UNUSABLE.search(root) or len(root.encode()) > _LONGEST or root[0] in "/$":
        raise ConfigurationError(
            f"{table}.topic: one or more levels such as 'fast', without + # {{ }}"
        )


def check_filters(filters: Sequence[str]) -> None:
    """Raise ConfigurationError for an invalid topic filter among them."""
    for text in filters:
        plain = text.replace("{topic}", "t").replace("{node}", "n")
        is_valid = _FILTER.fullmatch(plain) and len(plain) <= _LONGEST and "{node}" in text
        if not plain or plain[0] in "+#$" or not is_valid:
            raise ConfigurationError(
                f"agents.fast.accept-from: {text[:80]!r}: a filter such as"
                " '{topic}/agent/{node}/task/#', with {node}, and with + and # for whole levels"
            )


def _pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression for the topics of a filter; `a/#` also matches `a`."""
    is_open = text.endswith("/#")
    levels = text.removesuffix("/#").split("/")
    parts = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    return re.compile(parts + ("(?:/.*)?" if is_open else ""), re.DOTALL)
