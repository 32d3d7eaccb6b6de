"""Computation of a job's figures from the series of a store. No I/O."""

from __future__ import annotations

import math
from itertools import groupby, pairwise
from statistics import median_low
from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.views.amounts import mean_of_known
from ccagent.views.job.figures import (
    LARGEST_VALUE,
    CardFigures,
    CoreUse,
    JobFigures,
    JobSeries,
    NodeFigures,
    NodeHardware,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.views.job.figures import JobFacts

_GAPS = 200
"""Number of gaps between samples that determine the usual gap."""

_QUANTILES, _LONGER = (0.95, 0.99, 1.0), 0.05
"""Shares of the time for the high use: the first with which a job of so many cores would take at
most this share longer."""

_ONE_CORE, _SEVERAL = 1.1, 4.0
"""Maximum of cores in use that count as the work of one, and minimum that counts as several."""

_QUIET = 0.1
"""Share of the high use up to which a time is quiet."""

_NO_WORK = 0.1
"""Cores in use up to which nothing happens: an open session uses a few hundredths."""

_MOST_MISSING = 0.1
"""Share of the nodes that may lack a sample at a time that counts."""

_LARGEST_GAP = 3
"""Number of periods without samples from which the time between counts as unknown."""


_MOST_TIMES = 1 << 22
"""Maximum of times of two joined series. Beyond, the start of one of them is damaged."""


class JobMeasurement:
    """The figures of a job, computed node by node: only one node's series are in memory.

    now: seconds since 1970. hardware: by node name.
    """

    def __init__(
        self, facts: JobFacts, now: float, hardware: Mapping[str, NodeHardware] | None = None
    ) -> None:
        self._facts = facts
        stop = facts.stop if facts.stop is not None else now
        self._elapsed = max(0.0, stop - facts.start)
        self._hardware = hardware or {}
        self._found: dict[str, NodeFigures] = {}
        self._period = 0.0
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        """Cores in use, and reporting nodes, by number of the period."""

    def add(
        self, name: str, series: Iterable[JobSeries], hardware: NodeHardware | None = None
    ) -> None:
        """Add all series of a node. hardware: instead of that known from the start."""
        of_node = {(one.metric, one.card): one for one in series}
        self._period = self._period or _find_period(of_node)
        known = hardware or self._hardware.get(name)
        self._found[name] = _measure_node(self._facts, name, of_node, self._elapsed, known)
        if (used := of_node.get(("job_cpu_util", ""))) is not None and self._period:
            cores = {
                int((used.start + place * used.step - self._facts.start) // self._period): value
                for place, value in enumerate(used.values)
                if value is not None
            }
            for number, value in cores.items():
                self._sums[number] = self._sums.get(number, 0.0) + value / 100
                self._counts[number] = self._counts.get(number, 0) + 1

    def _measure_cores(self) -> CoreUse | None:
        """Return the use of cores over the time; None with fewer than two samples."""
        nodes = max(self._counts.values(), default=0)
        row = [
            self._sums[number] * nodes / count
            for number, count in sorted(self._counts.items())
            if count >= (1 - _MOST_MISSING) * nodes
        ]
        if len(row) < 2:
            return None
        high, quantile, ordered = 0.0, 1.0, sorted(row)
        for quantile in _QUANTILES:
            high = ordered[math.ceil(quantile * len(row)) - 1]
            if sum(max(0.0, one - high) for one in row) <= _LONGER * high * len(row):
                break
        border = max(_QUIET * high, _ONE_CORE if high >= _SEVERAL else 0.0)
        quiet = _count_at_end(row, border)
        serial = sum(one <= _ONE_CORE for one in row) / len(row) if high >= _SEVERAL else 0.0
        share = self._elapsed / len(row)
        return CoreUse(
            peak=max(row),
            high=high,
            quantile=quantile,
            serial=serial,
            quiet=quiet * share,
            quiet_cores=_mean(row[-quiet:]) if quiet else 0.0,
            idle=_count_at_end(row, _NO_WORK) * share,
        )

    def finish(self) -> JobFigures:
        """Return the figures of the job. Figures of nodes that were not added are unknown."""
        for name in self._facts.nodes:
            if name not in self._found:
                self.add(name, ())
        facts, details = self._facts, self._facts.details
        is_running = facts.stop is None
        return JobFigures(
            job=facts.job,
            cluster=facts.cluster,
            user=facts.user,
            account=details.account,
            name=details.name,
            partition=details.partition,
            state=facts.state.partition(" ")[0].upper(),
            exit_code=details.exit_code,
            start=facts.start,
            stop=facts.stop,
            elapsed=self._elapsed,
            time_limit=details.time_limit,
            gpus=details.gpus,
            asked_cores=details.asked_cores,
            period=self._period,
            expected_samples=_expect_samples(self._elapsed, self._period, is_running=is_running),
            is_exclusive=details.is_exclusive,
            has_gpu_share=bool(details.has_gpu_share),
            has_terminal=details.has_terminal,
            use=self._measure_cores(),
            accounted_cpu_seconds=details.cpu_seconds,
            usage=facts.usage,
            currency=facts.currency,
            nodes=tuple(self._found[name] for name in facts.nodes),
        )


def measure_job(
    facts: JobFacts,
    series: Iterable[JobSeries],
    now: float,
    hardware: Mapping[str, NodeHardware] | None = None,
) -> JobFigures:
    """Return the figures of a job. The series must be grouped by node."""
    measured = JobMeasurement(facts, now, hardware)
    for name, each in groupby(series, key=lambda one: one.node):
        measured.add(name, each)
    return measured.finish()


def _expect_samples(elapsed: float, period: float, *, is_running: bool) -> int:
    """Return the expected number of samples of a node, without a possibly missing first and last.

    A rate needs two readings. The last sample of a running job may not have arrived yet.
    """
    if not period:
        return 0
    return max(0, int(elapsed // period) - (2 if is_running else 1))


def _find_period(series: Mapping[tuple[str, str], JobSeries]) -> float:
    """Return the usual seconds between samples of a node; 0 with fewer than two samples."""
    one = series.get(("job_cpu_util", "")) or series.get(("job_mem_rss", ""))
    return 0.0 if one is None else float(usual_gap(_places(one)) * one.step)


def _places(series: JobSeries) -> list[int]:
    """Return the indices of the values that are not missing."""
    return [number for number, value in enumerate(series.values) if value is not None]


def usual_gap(places: list[int]) -> int:
    """Return the usual number of steps between values; 0 with fewer than two values."""
    gaps = [after - before for before, after in pairwise(places[: _GAPS + 1])]
    return median_low(gaps) if gaps else 0


def _measure_node(
    facts: JobFacts,
    name: str,
    series: Mapping[tuple[str, str], JobSeries],
    elapsed: float,
    hardware: NodeHardware | None,
) -> NodeFigures:
    details, count = facts.details, max(1, len(facts.nodes))
    hardware = hardware or NodeHardware()

    def values(metric: str) -> list[float]:
        one = series.get((metric, ""))
        return one.present() if one is not None else []

    used = values("job_cpu_util")
    resident = values("job_mem_rss")
    limit = max(values("job_mem_limit"), default=None)
    if limit is None and details.memory is not None:
        limit = details.memory / count
    cores: float | None = details.cpus.get(name)
    if cores is None and details.cores is not None:
        cores = details.cores / count
    read, written = values("job_io_read"), values("job_io_write")
    kills = max(values("job_oom_kills"), default=None)
    is_alone = details.is_exclusive is True
    return NodeFigures(
        name=name,
        cores=cores,
        cpu_seconds=_mean(used) / 100 * elapsed if used else None,
        memory_limit=limit,
        memory_peak=max(resident, default=None),
        memory_charged=max([*values("job_mem_peak"), *values("job_mem_used")], default=None),
        memory_pressure=mean_of_known(values("job_pressure_memory")),
        io_pressure=mean_of_known(values("job_pressure_io")),
        oom_kills=None if kills is None else int(kills),
        load=mean_of_known(values("cpu_load")) if is_alone else None,
        samples=max(len(used), len(resident)),
        total_cores=hardware.cores,
        total_memory=hardware.memory,
        total_cards=hardware.cards,
        io_read=_mean(read) * elapsed if read else None,
        io_written=_mean(written) * elapsed if written else None,
        cards=_measure_cards(facts, name, series, elapsed),
    )


def _count_at_end(row: list[float], border: float) -> int:
    """Return the number of last values up to a border. A single higher value does not end them."""
    count = 0
    for number in range(1, len(row) + 1):
        if row[-number] <= border:
            count = number
        elif number - count > 1:
            break
    return count


def _measure_cards(
    facts: JobFacts, name: str, series: Mapping[tuple[str, str], JobSeries], elapsed: float
) -> tuple[CardFigures, ...]:
    """Return the cards of a job on a node.

    Without known cards, the card of a job with one GPU comes from the use by its processes.
    """
    found: list[CardFigures] = []
    for number, address in enumerate(facts.details.cards.get(name, ())):
        used = series.get(("acc_utilization", address))
        memory = series.get(("acc_mem_used", address))
        share = series.get(("acc_mem_share", address))
        peak = max(memory.present(), default=None) if memory is not None else None
        of_all = max(share.present(), default=0.0) if share is not None else 0.0
        total = 100 * peak / of_all if peak is not None and of_all > 0 else None
        if total is not None and total >= LARGEST_VALUE:
            total = None
        active, power, limit = (
            _mean_of(series.get((metric, address)))
            for metric in ("acc_sm_active", "acc_power", "acc_power_limit")
        )
        card = CardFigures(
            card=str(number),
            memory_peak=peak,
            memory_total=total,
            sm_active=active,
            power=power,
            power_limit=limit,
        )
        found.append(_measure_use(card, used, facts, elapsed))
    if not found and facts.details.gpus == 1:
        only = _find_only_card(series)
        # The GPU of a job with several nodes is on the node that has sent its use.
        if only is not None or len(facts.nodes) == 1:
            card = CardFigures(card="0", sm_active=_mean_of(series.get(("job_gpu_sm_active", ""))))
            found.append(_measure_use(card, only, facts, elapsed))
    return tuple(found)


def _find_only_card(series: Mapping[tuple[str, str], JobSeries]) -> JobSeries | None:
    """Return the utilization of the only card of a job; 0 at times without use.

    `job_gpu_util` only has values while a process uses a card, `job_gpus_idle` always.
    """
    used, idle = series.get(("job_gpu_util", "")), series.get(("job_gpus_idle", ""))
    if idle is None:
        return used
    values: dict[int, float | None] = {
        idle.start + number * idle.step: 0.0 if value == 1 else None
        for number, value in enumerate(idle.values)
    }
    if used is not None:
        values |= {
            used.start + number * used.step: value
            for number, value in enumerate(used.values)
            if value is not None
        }
    start, end = min(values, default=0), max(values, default=0)
    if (end - start) // idle.step > _MOST_TIMES:
        return used
    row = [values.get(time) for time in range(start, end + 1, idle.step)]
    return JobSeries("job_gpu_util", idle.node, "", start, idle.step, row)


def _measure_use(
    card: CardFigures, used: JobSeries | None, facts: JobFacts, elapsed: float
) -> CardFigures:
    """Return a card with its use; the unchanged card if its use is unknown."""
    places = _places(used) if used is not None else []
    if used is None or not places:
        return card
    values = used.present()
    period = usual_gap(places)
    expected = _expect_samples(elapsed, period * used.step, is_running=facts.stop is None)
    is_enough = len(values) > 1
    return structs.replace(
        card,
        utilization=_mean(values),
        idle_at_end=_measure_idle_end(used, places, period, facts.start + elapsed),
        samples=len(values),
        coverage=100.0 * len(values) / expected if expected else 100.0 * is_enough,
    )


def _measure_idle_end(used: JobSeries, places: list[int], period: int, stop: float) -> float:
    """Return the seconds before the end in which every sample was 0, without a large gap."""
    largest = _LARGEST_GAP * period
    if stop - (used.start + places[-1] * used.step) > (largest + 1) * used.step:
        return 0.0  # no samples near the end
    begin = places[-1]
    for place in reversed(places[:-1]):
        if used.values[begin] or begin - place > largest:
            break
        begin = place
    return float((places[-1] - begin) * used.step)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _mean_of(series: JobSeries | None) -> float | None:
    return None if series is None else mean_of_known(series.values)
