"""One observation of all targets: from texts to records and counters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry, Problem, Target
from ccagent.agents.lustre.jobstats.parser import parse
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.lustre.jobstats.records import JobTotals, RecordMaker, Value
    from ccagent.agents.lustre.jobstats.series import OperationCounters, Series
    from ccagent.agents.lustre.jobstats.source import JobstatsSource, Text
    from ccagent.agents.lustre.settings import LustreSettings
    from ccagent.machine.node import Node

SYSTEM = "_system_"
"""The id of the record of aggregated entries."""

_PROBLEMS = 20
_TAG = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")


class Observation:
    """Reads all targets once, at `now` (seconds since 1970). counters: None without points."""

    def __init__(
        self,
        now: float,
        settings: LustreSettings,
        series: Series,
        maker: RecordMaker,
        counters: JobTotals | None,
        *,
        wants_records: bool,
    ) -> None:
        self._now = now
        self._timestamp = timestamp(now)
        self._series = series
        self._settings = settings
        self._maker = maker
        self._counters = counters
        self._wants_records = wants_records
        self._target = Target("", "")
        self._problems = 0
        self._hides_entries = False
        self._hides_of_target = self._has_entries = self._has_problems = False
        self._targets_read = 0
        self._errors: list[CcagentError] = []
        self.failure: CcagentError | None = None
        """Error if no target could be read; NotHereError without a target; None if one was read."""
        self.counts = dict.fromkeys(("entries", "broken", "malformed", "system"), 0)
        """Number of entries, and of broken, malformed (no configured format) and system entries."""

    def records(self, source: JobstatsSource, node: Node) -> Iterator[dict[str, Value]]:
        """Yield the records during reading. A failing target is skipped and logged.

        If no target could be read, `failure` is set afterwards.
        """
        self._series.begin(self._now, self._maker.boot_time)
        self._maker.begin()
        if self._counters is not None:
            self._counters.begin()
        errors = self._errors
        for text in source.texts(node, errors):
            try:
                yield from self._text(text)
            except CcagentError as error:
                errors.append(error)
        if errors and not self._targets_read:
            self.failure = errors.pop()
        for problem in errors:
            logger.warning("agent lustre: %s", problem)
        if self._problems > _PROBLEMS:
            logger.warning("agent lustre: and %d more problems", self._problems - _PROBLEMS)
        self._series.end(complete=not (errors or self.failure or self._hides_entries))
        if not self._targets_read:
            self.failure = self.failure or NotHereError(source.without_targets)

    def _text(self, text: Text) -> Iterator[dict[str, Value]]:
        """Read the text of one target or of all. Raise CcagentError if the text breaks off."""
        begun = bool(text.name)
        if begun:
            self._begin(Target(text.name, text.kind))
        try:
            for item in parse(text.chunks, text.name, text.kind):
                if isinstance(item, JobstatsEntry):
                    yield from self._entry(item)
                elif isinstance(item, Problem):
                    self._complain(item)
                elif not begun or item.name != self._target.name:
                    if begun:
                        yield from self._end(complete=True)
                    self._begin(item)
                    begun = True
        except CcagentError:
            if begun:
                yield from self._end(complete=False)
            raise
        if begun:
            yield from self._end(complete=True)

    def _begin(self, target: Target) -> None:
        self._target = target
        self._hides_of_target = self._has_entries = self._has_problems = False
        self._series.begin_target(target.name)

    def _end(self, *, complete: bool) -> Iterator[dict[str, Value]]:
        if complete and self._has_problems and not self._has_entries:
            name = self._target.name
            self._errors.append(UnparsableError(f"{name}: the text has no entry of job_stats"))
            complete = False
        totals = self._series.system
        if self._wants_records and self._settings.system_entries == "aggregate" and totals:
            yield self._maker.make_system(self._target, SYSTEM, self._timestamp, totals)
        if complete:
            self._targets_read += 1
        self._series.end_target(complete=complete and not self._hides_of_target)

    def _entry(self, entry: JobstatsEntry) -> Sequence[dict[str, Value]]:
        maker, counters, target = self._maker, self._counters, self._target
        settings = self._settings
        self._has_entries = True
        form, parts = identity = maker.identity(entry.job_id)
        is_system = (
            parts.get("user_id") in settings.system_users
            or parts.get("executable") in settings.system_executables
        )
        treatment = settings.system_entries if is_system else "keep"
        wants_growth = counters is not None or treatment == "aggregate"
        seen = self._series.see(entry, wants_growth=wants_growth)
        if seen is None:
            return ()  # the kernel printed the entry twice
        counts = self.counts
        counts["entries"] += 1
        counts["system"] += is_system
        counts["malformed"] += not form
        counts["broken"] += entry.is_broken
        if entry.is_broken:
            return ()
        if treatment == "aggregate":
            _add(self._series.system, seen.since)
        if treatment != "keep":
            return ()
        if counters is not None:
            counters.see(_tag(target.name), _tag(str(parts.get("job_id", ""))), seen.since)
        if not self._wants_records:
            return ()
        record = maker.make(target, entry, identity, self._timestamp, seen)
        if seen.begins_after is None:
            return (record,)
        begin = timestamp(seen.begins_after)
        return (maker.make_beginning(target, entry, identity, begin), record)

    def _complain(self, problem: Problem) -> None:
        self._problems += 1
        self._has_problems = True
        if problem.hides_entries:
            self._hides_entries = self._hides_of_target = True
        if self._problems <= _PROBLEMS:
            logger.warning(
                "agent lustre: %s, line %d: %s: %s",
                problem.target or "no target", problem.line, problem.reason, problem.text,
            )  # fmt: skip


def timestamp(seconds: float) -> str:
    """Return a time in the format of the records, `2022-11-21T06:02:00.000+00:00`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _add(totals: dict[str, int], since: dict[str, OperationCounters]) -> None:
    """Add the deltas of an entry to counters with the names of records."""
    for name, (samples, total, _) in since.items():
        requests = name.removesuffix("_bytes")
        if requests != name:
            totals[name] = totals.get(name, 0) + total
        if requests == name or requests not in since:
            totals[requests] = totals.get(requests, 0) + samples


def _tag(text: str) -> str:
    """Return a text if it is a valid tag value, else an empty text."""
    return text if _TAG.fullmatch(text) else ""
