"""Usage as a table and as CSV, and the texts of its amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.stores.metrics.usage.table import JOULES_PER_KWH, UsageAnswer, UsageSum
from ccagent.views.amounts import format_number, format_quantity, format_time, percent
from ccagent.views.terminal import clean, write_csv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo


_FIELDS = (
    "period", "key", "jobs", "measured_jobs", "bounded_jobs", "kwh", "least_kwh", "most_kwh",
    "co2_kg", "factor_share", "cost", "currency",
)  # fmt: skip


def format_energy(found: UsageSum) -> str:
    """Return the energy of a sum with its interval."""
    if not found.measured:
        return "unknown"
    text = format_quantity(found.joules / 3600, "Wh")
    if not found.bounded:
        return f"{text}, interval unknown"
    least, most = (format_quantity(one / 3600, "Wh") for one in (found.least, found.most))
    return f"{text} ({least} to {most})"


def format_grams(found: UsageSum, unit: str = "kg") -> str:
    """Return the CO2 of a sum; of which part of its energy, if the factor is not always known."""
    if found.grams is None:
        return "unknown"
    text = f"{format_number(found.grams / 1000)} {unit}"
    if found.factor_share < 0.9995:
        text += f" for {format_number(100 * found.factor_share)} %"
    return text


def format_cost(found: UsageSum, currency: str) -> str:
    """Return the cost of a sum; empty without a price."""
    return "" if found.cost is None else f"{found.cost:.2f} {clean(currency)}"


def describe_usage(found: UsageSum, currency: str) -> str:
    """Return energy, CO2 and cost of a job in a line."""
    texts = [format_energy(found)]
    if found.coverage is not None:
        texts.append(f"{percent(100 * found.coverage)} % covered")
    if found.grams is not None:
        texts.append(format_grams(found, "kg CO2"))
    return "   ".join([*texts, *filter(None, [format_cost(found, currency)])])


def format_table(answer: UsageAnswer) -> list[str]:
    """Return the lines of a table, with notes on what the sums lack."""
    head = ["", answer.by, "jobs", "energy (interval)", "CO2", "cost"]
    rows = [head, *(_row(one, one.key or "unknown", answer) for one in answer.rows)]
    rows.append(_row(answer.total, "total", answer))
    kept = [place for place in range(len(head)) if any(row[place] for row in rows[1:])]
    widths = {place: max(len(row[place]) for row in rows) for place in kept}
    lines = [
        "  ".join(
            row[place].rjust(widths[place]) if place == 2 else row[place].ljust(widths[place])
            for place in kept
        ).rstrip()
        for row in rows
    ]
    start, end = format_time(answer.start), format_time(answer.end)
    return [f"jobs that ended from {start} to {end}", "", *lines, "", *notes(answer)]


def _row(found: UsageSum, name: str, answer: UsageAnswer) -> list[str]:
    return [
        found.period, clean(name), str(found.jobs), format_energy(found), format_grams(found),
        format_cost(found, answer.currency),
    ]  # fmt: skip


def notes(answer: UsageAnswer, zone: tzinfo | None = None) -> Iterator[str]:
    """Yield sentences on unknown energy, the interval, PUE and the source of factors.

    zone: of times; None: of this machine.
    """
    total = answer.total
    if total.measured < total.jobs:
        yield f"Energy known of {total.measured} of {total.jobs} jobs; the others are not in it."
    if total.bounded < total.measured:
        yield f"Interval known of {total.bounded} of {total.measured} jobs; others count as exact."
    yield (
        "Interval: errors on one node are added, those of different nodes by their squares, except"
        f" for {format_number(100 * answer.common_error)} % that all sensors may share."
    )
    if answer.pue != 1 and (total.grams is not None or total.cost is not None):
        yield f"CO2 and cost are of the energy times a PUE of {format_number(answer.pue)}."
    if answer.factor_problem:
        hour = answer.factor_hour
        since = "" if hour is None else f" since {format_time(hour, zone)}"
        yield f"No factor of {answer.factor_source}{since}: {clean(answer.factor_problem)}"
    elif total.grams is None and not answer.factor_source:
        yield "CO2 needs factors: usage.factor-file or usage.source of the store."


def format_csv(answer: UsageAnswer) -> str:
    """Return CSV with one line per key and period, without the total. Unknown values are empty."""
    return write_csv(_FIELDS, (_csv_row(one, answer.currency) for one in answer.rows))


def _csv_row(one: UsageSum, currency: str) -> tuple[object, ...]:
    is_known = one.measured > 0
    energies = [
        joules / JOULES_PER_KWH if is_known else None
        for joules in (one.joules, one.least, one.most)
    ]
    grams = None if one.grams is None else one.grams / 1000
    return (
        one.period, one.key, one.jobs, one.measured, one.bounded, *energies, grams,
        one.factor_share if is_known else None, one.cost, currency,
    )  # fmt: skip
