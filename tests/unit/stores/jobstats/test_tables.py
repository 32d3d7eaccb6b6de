"""Answers as tables, JSON and CSV."""

from __future__ import annotations

import json

import pytest

from ccagent.stores.jobstats.queries import JobAnswer, JobRate, JobTotal, TopAnswer, TopRow
from ccagent.stores.jobstats.tables import format_amount, format_job, format_top

TOP = TopAnswer(
    "2026-11-22T11:00:00+00:00", "2026-11-22T12:00:00+00:00", "job", "read_bytes",
    ("read_bytes", "open"),
    [
        TopRow("11317854", {"read_bytes": 5 << 30, "open": 1234}),
        TopRow("", {"read_bytes": 0, "open": 1}),
    ],
)  # fmt: skip
JOB = JobAnswer(
    "5", "2026-11-22T11:00:00+00:00", "2026-11-22T12:00:00+00:00", {"account": "phys\n"},
    [JobTotal("fs-OST0000", "write_bytes", 2048, 0.5, 17.0)],
    [
        JobRate("2026-11-22T11:00:00+00:00", "2026-11-22T11:02:00+00:00", target, "write", 1.5)
        for target in ("fs-OST0000", "fs-OST0001")
    ],
)  # fmt: skip


def test_a_top_is_a_table() -> None:
    assert format_top(TOP, "table") == (
        "job       read_bytes   open\n"
        "11317854     5.0 GiB  1 234\n"
        "-                0 B      1\n"
    )  # fmt: skip


def test_numbers_are_exact_for_programs() -> None:
    assert format_top(TOP, "csv") == "job,read_bytes,open\n11317854,5368709120,1234\n,0,1\n"
    assert json.loads(format_top(TOP, "json"))["rows"][0]["totals"]["read_bytes"] == 5 << 30


def test_rates_of_all_targets_are_added() -> None:
    text = format_job(JOB, "table")
    assert "account phys\\x0a" in text or "account phys" in text
    assert "fs-OST0000  write_bytes  2.0 KiB         0 B             17 B" in text
    assert text.endswith("2026-11-22T11:00:00  2026-11-22T11:02:00     3.00\n")
    assert format_job(JOB, "csv").count("\n") == 3


@pytest.mark.parametrize(
    ("operation", "value", "text"),
    [
        ("read_bytes", 1023, "1023 B"), ("read_bytes", 1024, "1.0 KiB"),
        ("read_bytes", 2**64, "16.0 EiB"), ("read_bytes", 2**75, "32768.0 EiB"),
        ("open", 10**6, "1 000 000"), ("open", 0.125, "0.12"), ("open", 100.6, "101"),
    ],
)  # fmt: skip
def test_amounts_have_units(operation: str, value: float, text: str) -> None:
    assert format_amount(operation, value) == text
