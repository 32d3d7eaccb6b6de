"""Usage as a table and CSV: what is unknown is said, never 0."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ccagent.stores.metrics.usage.table import UsageAnswer, UsageSum
from ccagent.views.job.formats import describe_usage, format_csv, format_table
from ccagent.views.terminal import clean

KWH = 3.6e6
BIO = UsageSum(
    key="bio", jobs=12, measured=12, bounded=12, joules=1500 * KWH, least=1400 * KWH,
    most=1650 * KWH, grams=84_000.0, factor_share=1.0, cost=375.0,
)  # fmt: skip
DARK = UsageSum(key="=dark\x1b[31m", jobs=3)
ANSWER = UsageAnswer(
    start=1_800_000_000, end=1_802_592_000, by="project", each="", pue=1.2, price=0.25,
    currency="EUR", common_error=0.05, factor_source="rte", factor_hour=1_802_588_400,
    factor_problem="", total=structs.replace(BIO, key="", jobs=15), rows=[BIO, DARK],
)  # fmt: skip


def lines(**changes: Any) -> list[str]:
    return format_table(structs.replace(ANSWER, **changes))


def test_a_table_has_intervals_and_says_what_is_missing() -> None:
    head, blank, *rest = lines()
    assert head.startswith("jobs that ended from ")
    assert blank == ""
    assert rest == [
        "project     jobs  energy (interval)              CO2      cost",
        "bio           12  1.5 MWh (1.4 MWh to 1.65 MWh)  84 kg    375.00 EUR",
        f"{clean(DARK.key)}     3  unknown                        unknown",
        "total         15  1.5 MWh (1.4 MWh to 1.65 MWh)  84 kg    375.00 EUR",
        "",
        "Energy known of 12 of 15 jobs; the others are not in it.",
        (
            "Interval: errors on one node are added, those of different nodes by their squares,"
            " except for 5 % that all sensors may share."
        ),
        "CO2 and cost are of the energy times a PUE of 1.2.",
    ]


def test_a_source_that_is_gone_is_said() -> None:
    (*_, note) = lines(factor_problem="status 503")
    assert note.startswith("No factor of rte since ")
    assert note.endswith(": status 503")


def test_a_store_without_factors_says_what_to_set() -> None:
    bare = structs.replace(BIO, grams=None, cost=None)
    (*_, note) = lines(factor_source="", rows=[bare], total=bare)
    assert note == "CO2 needs factors: usage.factor-file or usage.source of the store."


def test_csv_has_empty_fields_for_the_unknown_and_no_formulas() -> None:
    head, bio, dark = format_csv(ANSWER).splitlines()
    assert head == (
        "period,key,jobs,measured_jobs,bounded_jobs,kwh,least_kwh,most_kwh,co2_kg,factor_share,"
        "cost,currency"
    )
    assert bio == ",bio,12,12,12,1500.0,1400.0,1650.0,84.0,1.0,375.0,EUR"
    assert dark == ",'=dark\x1b[31m,3,0,0,,,,,,,EUR"


def test_a_job_in_a_line() -> None:
    job = structs.replace(BIO, jobs=1, measured=1, bounded=1)
    assert describe_usage(job, "EUR") == ("1.5 MWh (1.4 MWh to 1.65 MWh)   84 kg CO2   375.00 EUR")
    assert describe_usage(structs.replace(job, bounded=0, cost=None, grams=None), "EUR") == (
        "1.5 MWh, interval unknown"
    )
    part = structs.replace(job, factor_share=0.5)
    assert "84 kg CO2 for 50 %" in describe_usage(part, "EUR")
