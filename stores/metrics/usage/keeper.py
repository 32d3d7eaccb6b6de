"""Keeps the energy of ended jobs, asks the source of factors, and answers questions about usage."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.stores.metrics.query_request import BadRequestError, parameter
from ccagent.stores.metrics.usage.factors import HOUR, FactorSeries, fetch_factors, read_factor_file
from ccagent.stores.metrics.usage.job_energy import read_coverage, read_job_use
from ccagent.stores.metrics.usage.table import (
    KEYS,
    PERIODS,
    NodeSum,
    UsageAnswer,
    UsageQuery,
    UsageSum,
    add_up,
    open_usage,
)

if TYPE_CHECKING:
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.settings import UsageSettings
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.usage.table import UsageTable

_DEFAULT = 30 * 86400
_MOST_DIGITS = 11


class UsageKeeper:
    """The table of usage with its factors. One thread at a time asks the source."""

    def __init__(self, settings: UsageSettings, directory: str) -> None:
        """Open the table in the store's directory. Raise ConfigurationError."""
        self.settings = settings
        self.table: UsageTable = open_usage(os.path.join(directory, "usage.sqlite"))
        self.factors = FactorSeries()
        self.problem = ""
        self._read_at: float | None = None
        self._read_file(is_first=True)
        self._key = f"{settings.source} {settings.zone}"
        if settings.source:
            self.factors.hours |= self.table.read_factors(self._key)

    async def refresh(self) -> None:
        """Read a changed file of factors, and ask the source. After a failure keep the last."""
        self._read_file()
        if not self.settings.source:
            return
        try:
            found = await asyncio.to_thread(fetch_factors, self.settings)
            self.table.keep_factors(self._key, found.hours)
        except Exception as error:  # noqa: BLE001 - whatever a source answers, the last is kept
            if str(error) != self.problem:
                logger.warning(
                    "source of factors %s: %s; keeping the last value", self.settings.source, error
                )
            self.problem = str(error)
            return
        if self.problem:
            logger.info("source of factors %s: answers again", self.settings.source)
        self.problem = ""
        self.factors.hours |= found.hours
        if found.constant is not None:
            self.factors.constant = found.constant

    def keep(self, store: MetricStore, job: StoredJob, stop: int) -> None:
        """Store the energy of an ended job. stop: the end of its values. Raise sqlite3.Error."""
        uses = read_job_use(store, job, stop)
        hours: dict[int, float] = {}
        for use in uses.values():
            for hour, joules in use.hours.items():
                hours[hour] = hours.get(hour, 0.0) + joules
        self.table.keep(job, uses, self.factors.mean(hours))

    def of_job(self, store: MetricStore, job: StoredJob, stop: int) -> UsageSum | None:
        """Return the usage of a job: as stored, else of its values until `stop`.

        None if no node has sent its energy.
        """
        rows = self.table.find(job.cluster, job.job, job.start) if job.stop is not None else []
        if not rows:
            factor = self.factors.at(stop // HOUR)
            uses = read_job_use(store, job, stop).values()
            rows = [(one.joules, one.below, one.above, factor) for one in uses]
        known = [(row[0], *row[1:]) for row in rows if row[0] is not None]
        if not known:
            return None
        is_bounded = all(below is not None for _, below, _, _ in known)
        found = add_up(
            [_node_sum(*row) for row in known], self.settings, key=job.job,
            jobs=[1, 1, int(is_bounded)],
        )  # fmt: skip
        return msgspec.structs.replace(found, coverage=read_coverage(store, job, stop))

    def answer(self, query: UsageQuery) -> UsageAnswer:
        """Return the sums of a query. Raise sqlite3.Error."""
        settings, newest = self.settings, self.factors.newest()
        rows, total = self.table.sums(query, settings)
        return UsageAnswer(
            start=query.start, end=query.end, by=query.by, each=query.each, pue=settings.pue,
            price=settings.price, currency=settings.currency, common_error=settings.common_error,
            factor_source=settings.source or ("file" if settings.factor_file else ""),
            factor_hour=None if newest is None else newest * HOUR, factor_problem=self.problem,
            total=total, rows=rows,
        )  # fmt: skip

    def close(self) -> None:
        """Close the table."""
        self.table.close()

    def _read_file(self, *, is_first: bool = False) -> None:
        """Read the file of factors if it has changed. Raise ConfigurationError at the start."""
        path = self.settings.factor_file
        if not path:
            return
        try:
            changed = os.stat(path).st_mtime
            if changed != self._read_at:
                self.factors.file = read_factor_file(path, self.settings.zone)
                self._read_at = changed
        except (OSError, ConfigurationError) as error:
            if is_first:
                raise ConfigurationError(f"usage.factor-file: {error}") from error
            logger.warning("usage.factor-file: %s; keeping its last content", error)


def _node_sum(
    joules: float, below: float | None, above: float | None, factor: float | None
) -> NodeSum:
    known = 0.0 if factor is None else joules
    return NodeSum(joules, below or 0.0, above or 0.0, known * (factor or 0), known)


def parse_usage_query(url: bytes, now: int, owner: str | None) -> UsageQuery:
    """Parse a query of /api/usage. Raise BadRequestError.

    owner: the only user whose jobs may be read; None: all users.
    """
    by, each = parameter(url, "by") or "project", parameter(url, "each") or ""
    if by not in KEYS:
        raise BadRequestError(f"by: expected one of {', '.join(KEYS)}")
    if each not in PERIODS:
        raise BadRequestError("each: expected day or month")
    end = _moment(url, "to", now)
    start = _moment(url, "from", end - _DEFAULT)
    user = parameter(url, "user") or None
    if owner is not None:
        user = owner if user in {None, owner} else ""
    return UsageQuery(start, end, by, each, parameter(url, "cluster") or "", user)


def _moment(url: bytes, name: str, default: int) -> int:
    text = parameter(url, name) or ""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise BadRequestError(f"{name}: expected seconds since 1970")
    return int(text)
