"""Where the series of entries begin, and why they count anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry
from ccagent.agents.lustre.jobstats.parser import parse
from ccagent.agents.lustre.jobstats.series import OperationCounters, Seen, Series

T0, T1, T2, T3 = 1000.0, 1120.0, 1240.0, 1360.0
INTERVAL = 600.0
GOES_ON = Seen(None, None, {})


def entry(
    samples: int, *, size: int = 0, start: str = "", snapshot: int = 1000, name: str = "a:1:n"
) -> JobstatsEntry:
    """Make an entry with one operation."""
    start_line = f"  start_time:      {start} secs.nsecs\n" if start else ""
    text = (
        f"- job_id:          {name}\n  snapshot_time:   {snapshot}\n{start_line}"
        f"  read_bytes:      {{ samples: {samples}, unit: bytes, min: 1, max: 1, sum: {size}, "
        f"sumsq: {size * size} }}\n"
    )
    (found,) = [item for item in parse([text.encode()], "t") if isinstance(item, JobstatsEntry)]
    return found


def observe(
    series: Series,
    now: float,
    *entries: JobstatsEntry,
    complete: bool = True,
    target: str = "fs-OST0000",
) -> list[Seen]:
    series.begin(now)
    series.begin_target(target)
    seen: list[Seen] = []
    for each in entries:
        one = series.see(each, wants_growth=True)
        assert one is not None
        seen.append(one)
    series.end_target(complete=complete)
    series.end(complete=complete)
    return seen


@pytest.fixture
def series() -> Series:
    return Series("", 1000, INTERVAL)


def grown(samples: int, size: int = 0) -> dict[str, OperationCounters]:
    return {"read_bytes": OperationCounters(samples, size, size * size)}


class TestBeginning:
    def test_nothing_is_known_of_what_was_before_the_first_observation(
        self, series: Series
    ) -> None:
        assert observe(series, T0, entry(5)) == [Seen(None, None, grown(5))]

    def test_a_new_entry_begins_after_the_last_observation(self, series: Series) -> None:
        observe(series, T0)
        assert observe(series, T1, entry(5)) == [Seen(T0, None, grown(5))]

    def test_so_it_does_on_a_target_that_comes_here(self, series: Series) -> None:
        observe(series, T0)
        observe(series, T1)
        (seen,) = observe(series, T2, entry(5), target="fs-OST0001")
        assert seen.begins_after == T1

    def test_a_failed_reading_is_no_observation(self, series: Series) -> None:
        observe(series, T0)
        observe(series, T1, complete=False)
        assert observe(series, T2, entry(5))[0].begins_after == T0

    def test_what_a_partial_reading_shows_first_has_begun(self, series: Series) -> None:
        observe(series, T0)
        assert observe(series, T1, entry(5), complete=False)[0].begins_after == T0
        assert observe(series, T2, entry(6))[0].begins_after is None


class TestGoingOn:
    def test_it_grows_by_the_difference(self, series: Series) -> None:
        observe(series, T0, entry(5, size=10))
        assert observe(series, T1, entry(7, size=14)) == [
            Seen(None, None, {"read_bytes": OperationCounters(2, 4, 96)})
        ]
        assert observe(series, T2, entry(7, size=14)) == [GOES_ON]

    def test_a_failed_reading_is_no_disappearance(self, series: Series) -> None:
        observe(series, T0, entry(5))
        observe(series, T1, complete=False)
        assert observe(series, T2, entry(6))[0].reset is None

    def test_one_that_was_skipped_once_is_known_by_its_start(self, series: Series) -> None:
        observe(series, T0, entry(5, start="900.1"))
        observe(series, T1)
        assert observe(series, T2, entry(6, start="900.1")) == [Seen(None, None, grown(1))]

    def test_a_broken_entry_changes_nothing(self, series: Series) -> None:
        observe(series, T0, entry(5))
        broken = entry(1)
        broken.is_broken = True
        assert observe(series, T1, broken) == [GOES_ON]
        assert observe(series, T2, entry(6)) == [Seen(None, None, grown(1))]


class TestResets:
    def test_another_start_comes_first(self, series: Series) -> None:
        observe(series, T0, entry(5, start="900.1"))
        assert observe(series, T1, entry(9, start="1100.5")) == [Seen(None, "start_time", grown(9))]

    def test_then_that_it_was_gone(self, series: Series) -> None:
        observe(series, T0, entry(5))
        observe(series, T1)
        assert observe(series, T2, entry(9)) == [Seen(T1, "absent", grown(9))]

    def test_then_that_a_counter_is_less(self, series: Series) -> None:
        observe(series, T0, entry(5, size=10))
        assert observe(series, T1, entry(4, size=11)) == [
            Seen(None, "decreased", {"read_bytes": OperationCounters(4, 11, 121)})
        ]

    def test_or_its_sum_of_squares(self, series: Series) -> None:
        first, second = entry(5), entry(6)
        first.lines[0] = (*first.lines[0][:6], b"100", *first.lines[0][7:])
        second.lines[0] = (*second.lines[0][:6], b"99", *second.lines[0][7:])
        observe(series, T0, first)
        assert observe(series, T1, second)[0].reset == "decreased"

    @pytest.mark.parametrize(("old", "new"), [(2**64 - 1, 5), (2**63, 2**63 - 1)])
    def test_but_not_if_that_may_have_run_over(self, series: Series, old: int, new: int) -> None:
        first, second = entry(5), entry(6)
        first.lines[0] = (*first.lines[0][:6], b"%d" % old, *first.lines[0][7:])
        second.lines[0] = (*second.lines[0][:6], b"%d" % new, *second.lines[0][7:])
        observe(series, T0, first)
        assert observe(series, T1, second)[0].reset is None

    def test_the_same_start_is_the_same_entry(self, series: Series) -> None:
        observe(series, T0, entry(5, size=9, start="900.1"))
        assert observe(series, T1, entry(6, size=8, start="900.1", snapshot=9999))[0].reset is None

    def test_or_missing(self, series: Series) -> None:
        observe(series, T0, entry(5))
        empty = entry(5)
        empty.lines = []
        assert observe(series, T1, empty)[0].reset == "decreased"

    def test_last_that_it_may_have_been_cleaned_up(self, series: Series) -> None:
        observe(series, T0, entry(5, snapshot=1000))
        assert observe(series, T1, entry(6, snapshot=1601))[0] == Seen(
            None, "snapshot_gap", grown(1)
        )

    def test_a_target_that_was_elsewhere_has_lost_its_entries(self, series: Series) -> None:
        observe(series, T0, entry(5))
        observe(series, T1, target="fs-OST0001")
        assert observe(series, T2, entry(6)) == [Seen(T1, "absent", grown(6))]


class TestSkipped:
    """Entries that the kernel left out of one reading, on servers without start times."""

    def test_one_that_comes_back_unchanged_was_there(self, series: Series) -> None:
        observe(series, T0, entry(5, size=1000))
        observe(series, T1)
        assert observe(series, T2, entry(5, size=1000)) == [
            Seen(None, None, {"read_bytes": OperationCounters(0, 0, 0)})
        ]

    def test_so_was_one_whose_last_operation_lies_before(self, series: Series) -> None:
        observe(series, T0, entry(5, snapshot=990))
        observe(series, T1)
        assert observe(series, T2, entry(6, snapshot=1100)) == [Seen(None, None, grown(1))]

    def test_one_that_was_used_since_may_be_another(self, series: Series) -> None:
        observe(series, T0, entry(5, snapshot=990))
        observe(series, T1)
        assert observe(series, T2, entry(6, snapshot=1121)) == [Seen(T1, "absent", grown(6))]

    def test_one_that_has_less_is_another(self, series: Series) -> None:
        observe(series, T0, entry(5, snapshot=990))
        observe(series, T1)
        assert observe(series, T2, entry(4, snapshot=1100)) == [Seen(T1, "absent", grown(4))]

    def test_one_that_is_listed_twice_counts_once(self, series: Series) -> None:
        observe(series, T0)
        series.begin(T1)
        series.begin_target("fs-OST0000")
        assert series.see(entry(5), wants_growth=True) == Seen(T0, None, grown(5))
        assert series.see(entry(6), wants_growth=True) is None
        series.end_target(complete=True)
        series.begin_target("fs-OST0000")
        assert series.see(entry(6), wants_growth=True) is None
        series.end_target(complete=True)
        series.end(complete=True)
        assert observe(series, T2, entry(6)) == [Seen(None, None, grown(1))]

    def test_the_whole_one_of_two_counts(self, series: Series) -> None:
        observe(series, T0, entry(5))
        broken = entry(1)
        broken.is_broken = True
        assert observe(series, T1, broken, entry(7)) == [GOES_ON, Seen(None, None, grown(2))]

    def test_a_broken_one_starts_with_its_next_reading(self, series: Series) -> None:
        broken = entry(1)
        broken.is_broken = True
        observe(series, T0)
        observe(series, T1, broken)
        assert observe(series, T2, entry(7)) == [Seen(T1, None, grown(7))]


class TestFailover:
    """The zeros of a target that comes from another server lie behind what that one has sent."""

    @pytest.mark.parametrize(
        ("one", "start"),
        [
            (entry(5, start="1200.5", snapshot=1230), 1200.5),
            (entry(5, snapshot=1200), 1201.0),
            (entry(5, start="1100.5", snapshot=1230), T1),
            (entry(5, snapshot=1239), T2 - 0.001),
            (entry(5, snapshot=9999), T2 - 0.001),
        ],
    )
    def test_they_are_not_before_its_own_start(
        self, series: Series, one: JobstatsEntry, start: float
    ) -> None:
        observe(series, T0)
        observe(series, T1)
        assert observe(series, T2, one, target="fs-OST0001")[0].begins_after == start

    def test_nor_when_it_comes_back(self, series: Series) -> None:
        observe(series, T0, entry(9, start="900.5"))
        observe(series, T1, target="fs-OST0001")
        new = entry(5, start="1200.5", name="b:1:n")
        assert observe(series, T2, entry(5, start="1210.5"), new) == [
            Seen(1210.5, "absent", grown(5)), Seen(1200.5, None, grown(5)),
        ]  # fmt: skip

    def test_on_a_target_that_was_here_they_are_the_last_observation(self, series: Series) -> None:
        observe(series, T0)
        observe(series, T1)
        assert observe(series, T2, entry(5, start="1200.5"))[0].begins_after == T1

    def test_times_since_boot_are_converted(self, series: Series) -> None:
        one = entry(5, start="200.5")
        one.since_boot = True
        observe(series, T0)
        series.begin(T2, lambda: 1000.0)
        series.begin_target("fs-OST0001")
        seen = series.see(one, wants_growth=True)
        assert seen is not None
        assert seen.begins_after == 1200.5


class TestRestart:
    def test_it_remembers(self, tmp_path: Path) -> None:
        path = str(tmp_path / "state")
        before = Series(path, 1000, INTERVAL)
        observe(before, T0, entry(5))
        before.save()
        after = Series(path, 1000, INTERVAL)
        new = entry(1, name="b:1:n")
        assert observe(after, T2, entry(7), new) == [
            Seen(None, None, grown(2)), Seen(T0, None, grown(1)),
        ]  # fmt: skip

    @pytest.mark.parametrize("content", [b"", b"\x00", b"\x81\xa7version\x63", b"x" * 100])
    def test_a_damaged_file_is_none(
        self, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "state"
        path.write_bytes(content)
        series = Series(str(path), 1000, INTERVAL)
        assert observe(series, T0, entry(5)) == [Seen(None, None, grown(5))]
        assert "damaged" in caplog.text
        series.save()
        assert observe(Series(str(path), 1000, INTERVAL), T1, entry(5)) == [GOES_ON]

    def test_a_place_where_it_can_not_write_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        series = Series(str(tmp_path / "none" / "state"), 1000, INTERVAL)
        observe(series, T0, entry(5))
        series.save()
        assert "No such file" in caplog.text
        assert observe(series, T1, entry(5)) == [GOES_ON]


class TestBounds:
    def test_what_has_gone_is_forgotten_first(self, caplog: pytest.LogCaptureFixture) -> None:
        series = Series("", 3, INTERVAL)
        for number in range(10):
            observe(series, T0 + number, entry(5, name=f"{number}:1:n"))
        assert observe(series, T1, entry(5, name="9:1:n")) == [GOES_ON]
        observe(series, T2, *(entry(1, name=f"x{number}:1:n") for number in range(5)))
        assert "more than 3 entries" in caplog.text

    def test_what_has_gone_is_known_for_a_day_or_two(self, series: Series) -> None:
        observe(series, T0, entry(5))
        observe(series, T1)
        observe(series, T1 + 1.1 * 86400)
        later = entry(5, snapshot=int(T1 + 1.15 * 86400))
        assert observe(series, T1 + 1.2 * 86400, later)[0].reset == "absent"
        for day in (1.3, 2.4, 3.5):
            observe(series, T1 + day * 86400)
        (seen,) = observe(series, T1 + 4 * 86400, entry(5))
        assert seen.reset is None
        assert seen.begins_after == T1 + 3.5 * 86400
