"""Durations and cadences: which are accepted, and what is said about the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.config.duration import Cadence, Duration

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [
        ("250ms", 0.25, "250ms"),
        ("0s", 0, "0s"),
        ("30s", 30, "30s"),
        ("90s", 90, "90s"),
        ("5m", 300, "5m"),
        ("12h", 43200, "12h"),
        ("7d", 604800, "7d"),
        (" 5M ", 300, "5m"),
        ("005m", 300, "5m"),
        ("999999999s", 999_999_999, "999999999s"),
    ],
)
def test_durations(text: str, seconds: float, written: str) -> None:
    duration = Duration.parse(text)
    assert duration.seconds == seconds
    assert str(duration) == written
    assert repr(duration) == f"Duration({written!r})"


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-5s", "1.5h", "5 m", "1h30m", "5min", "5us", "1000000000s", "5s\n5s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as '30s', '5m', '12h' or '1d'"):
        Duration.parse(text)


@pytest.mark.parametrize("value", [30, 1.5, True, None, ["30s"]])
def test_a_duration_is_a_string(value: object) -> None:
    with pytest.raises(ValueError, match="write it as a string such as '30s'"):
        Duration.parse(value)


def test_equal_lengths_are_equal_durations() -> None:
    assert Duration("60s") == Duration("1m") == Duration("60000ms")
    assert len({Duration("24h"), Duration("1d"), Duration("1h")}) == 2
    assert Duration("1m") != Duration("1h")
    assert Duration("1m") != 60


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        duration = Duration.parse(text)
    except ValueError:
        return
    assert Duration.parse(str(duration)) == duration


def divisors(number: int) -> set[int]:
    return {n for n in range(1, number + 1) if number % n == 0}


@pytest.mark.parametrize(
    ("unit", "accepted"),
    [
        ("s", divisors(60)),
        ("m", divisors(60)),
        ("h", divisors(24)),
        ("d", set(range(1, 100))),
    ],
)
def test_cadences_that_recur_at_the_same_times_each_day(unit: str, accepted: set[int]) -> None:
    found: set[int] = set()
    for number in range(100):
        try:
            cadence = Cadence.parse(f"{number}{unit}")
        except ValueError:
            continue
        # 90s, 120s, 72h and the like are judged as what they amount to.
        if cadence.seconds <= {"s": MINUTE, "m": HOUR, "h": DAY, "d": 100 * DAY}[unit]:
            found.add(number)
    assert found == accepted


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120s", 120),
        ("300s", 300),
        ("3600s", HOUR),
        ("60m", HOUR),
        ("1440m", DAY),
        ("48h", 2 * DAY),
    ],
)
def test_a_cadence_may_be_written_in_a_smaller_unit(text: str, seconds: int) -> None:
    assert Cadence.parse(text).seconds == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7s", "'7s' does not divide a minute; nearest: '6s' or '10s'"),
        ("45s", "'45s' does not divide a minute; nearest: '30s' or '1m'"),
        ("0s", "'0s' does not divide a minute; nearest: '1s'"),
        ("500ms", "'500ms' does not divide a minute; nearest: '1s'"),
        ("90s", "'90s' does not divide an? hour; nearest: '1m' or '2m'"),
        ("7m", "'7m' does not divide an? hour; nearest: '6m' or '10m'"),
        ("45m", "'45m' does not divide an? hour; nearest: '30m' or '1h'"),
        ("90m", "'90m' does not divide a day; nearest: '1h' or '2h'"),
        ("5h", "'5h' does not divide a day; nearest: '4h' or '6h'"),
        ("18h", "'18h' does not divide a day; nearest: '12h' or '1d'"),
        ("25h", "'25h' is more than a day, but not a number of whole days"),
        ("5x", "'5x' is not a duration such as '30s', '5m', '12h' or '1d'"),
    ],
)
def test_what_is_said_about_other_cadences(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Cadence.parse(text)
