"""Entries of root and of job control: kept, omitted, or aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.lustre.jobstats.series import OperationCounters

Treatment = Literal["keep", "aggregate", "leave-out"]

SYSTEM = "_system_"
"""The id of the record of aggregated entries."""


class SystemEntries:
    """Recognises system entries by user id or executable; an id with neither is not one."""

    def __init__(
        self, treatment: Treatment, users: Iterable[int], executables: Iterable[str]
    ) -> None:
        self.treatment: Treatment = treatment
        self._users = frozenset(users)
        self._executables = frozenset(executables)

    def is_system(self, parts: dict[str, str | int]) -> bool:
        """Return whether an entry is a system entry, by the parts of its id."""
        return parts.get("user_id") in self._users or parts.get("executable") in self._executables


def add(totals: dict[str, int], since: dict[str, OperationCounters]) -> None:
    """Add the deltas of an entry to counters with the names of records."""
    for name, (samples, total, _) in since.items():
        if name.endswith("_bytes"):
            totals[name] = totals.get(name, 0) + total
            requests = name.removesuffix("_bytes")
            if requests not in since:
                totals[requests] = totals.get(requests, 0) + samples
        else:
            totals[name] = totals.get(name, 0) + samples
