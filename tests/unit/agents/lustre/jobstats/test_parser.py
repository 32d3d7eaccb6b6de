"""Parsing job_stats: every version's layout, recorded dumps, and what isn't as it should be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccagent.agents.lustre.jobstats.entry import (
    ELSEWHERE,
    JobstatsEntry,
    OperationStat,
    Problem,
    Target,
    canonical,
)
from ccagent.agents.lustre.jobstats.parser import parse
from tests.support import lustre_reference as reference
from tests.support.lustre_server import LAYOUTS, SimulatedTarget
from tests.support.paths import DATA

LUSTRE = DATA / "lustre"
FILES = sorted([*LUSTRE.glob("captures/*.txt"), *LUSTRE.glob("layouts/*.txt")])

HEADER = b"obdfilter.fs-OST0000.job_stats=\njob_stats:\n"
ENTRY = (
    b"- job_id:          11317854:17627127:r01c01\n"
    b"  snapshot_time:   1669010520\n"
    b"  write_bytes:     { samples: 25, unit: bytes, min: 1, max: 9, sum: 100 }\n"
    b"  punch:           { samples:  0, unit:  reqs }\n"
)


def pieces(text: bytes, size: int) -> list[bytes]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def understood(text: bytes, *, size: int = 1 << 20) -> list[tuple[object, ...]]:
    """Return target, id, times and numbers of each entry."""
    found: list[tuple[object, ...]] = []
    target = ""
    for item in parse(pieces(text, size)):
        assert not isinstance(item, Problem), item
        if isinstance(item, Target):
            target = item.name
        else:
            assert not item.is_broken
            found.append(
                (target, item.job_id, item.snapshot.decode(), item.start.decode(), item.stats)
            )
    return found


def expected(text: bytes) -> list[tuple[object, ...]]:
    return [
        (
            entry.target,
            entry.job_id,
            entry.snapshot_time,
            entry.start_time,
            {
                name: OperationStat(s.samples, s.unit, s.min, s.max, s.sum, s.sumsq, s.hist)
                for name, s in entry.stats.items()
                if s.samples
            },
        )
        for entry in reference.parse(text)
    ]


def entries(text: bytes) -> list[JobstatsEntry]:
    return [item for item in parse([text]) if isinstance(item, JobstatsEntry)]


def understood_with_problems(text: bytes) -> list[tuple[str, str]]:
    """Return target and id of each entry that counts."""
    found: list[tuple[str, str]] = []
    target = ""
    for item in parse([text]):
        if isinstance(item, Target):
            target = item.name
        elif isinstance(item, JobstatsEntry) and not item.is_broken:
            found.append((target, item.job_id))
    return found


def problems(text: bytes) -> list[Problem]:
    return [item for item in parse([text]) if isinstance(item, Problem)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestRecorded:
    def test_every_field_is_what_the_reference_says(self, path: Path) -> None:
        text = path.read_bytes()
        found = understood(text)
        assert found == expected(text)
        assert len(found) == text.count(b"- job_id:")

    def test_it_does_not_matter_how_it_comes(self, path: Path) -> None:
        text = path.read_bytes()
        whole = understood(text)
        for size in (1, 17, 4096):
            assert understood(text, size=size) == whole


def test_there_are_recordings_of_all_layouts() -> None:
    assert len([path for path in FILES if path.parent.name == "layouts"]) == 9
    assert len([path for path in FILES if path.parent.name == "captures"]) == 10


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["mdt", "obdfilter"])
def test_what_a_version_prints_is_understood(layout: str, kind: str) -> None:
    target = SimulatedTarget("fs-X0000", kind)  # type: ignore[arg-type]
    for number, operation in enumerate(("write_bytes", "setattr", "sync", "punch")):
        for job in ("11317854:17627127:r01c01", "kworker/0:1.0", "a b\\c"):
            target.do(job, operation, number + 1, 4096, now=1_700_000_000.0)
    text = target.parameter(layout, 1_700_000_010.0)
    assert understood(text) == expected(text)
    assert len(entries(text)) == 3


class TestFraming:
    def test_an_empty_target_is_a_target(self) -> None:
        text = b"obdfilter.a.job_stats=job_stats:\nobdfilter.b.job_stats=\nmdt.c.job_stats=\n"
        assert list(parse([text + b"job_stats:\n" + ENTRY]))[:3] == [
            Target("a", "obdfilter"), Target("b", "obdfilter"), Target("c", "mdt"),
        ]  # fmt: skip

    def test_each_line_may_have_the_name_before_it(self) -> None:
        prefix = b"obdfilter.fs-OST0000.job_stats="
        lines = [prefix + line for line in (b"job_stats:\n" + ENTRY).splitlines(keepends=True)]
        assert understood(b"".join(lines) * 1) == understood(HEADER + ENTRY)

    def test_without_names_targets_are_told_apart(self) -> None:
        text = b"job_stats:\n" + ENTRY + b"job_stats:\njob_stats:\n" + ENTRY
        found = [item for item in parse([text]) if isinstance(item, Target)]
        assert [target.name for target in found] == ["unnamed-1", "unnamed-2", "unnamed-3"]

    def test_a_file_has_the_name_that_is_given(self) -> None:
        found = list(parse([b"job_stats:\n" + ENTRY], "fs-OST0000", "obdfilter"))
        assert found[0] == Target("fs-OST0000", "obdfilter")
        assert len(found) == 2

    def test_a_header_of_the_requested_target_is_no_problem(self) -> None:
        for header in (HEADER, HEADER.replace(b"=\n", b"=")):
            found = list(parse([header + ENTRY], "fs-OST0000", "obdfilter"))
            assert [type(item) for item in found] == [Target, JobstatsEntry]

    def test_colours_of_a_terminal_are_not_text(self) -> None:
        text = (HEADER + ENTRY).replace(b"job_stats=", b"\x1b[32mjob_stats\x1b[0m=")
        text = text.replace(b"25", b"\x1b[1m25\x1b[0m")
        assert understood(text) == understood(HEADER + ENTRY)

    def test_other_parameters_around_say_nothing(self) -> None:
        text = b"health_check=healthy\n" + HEADER + ENTRY + b"memused=1\nabc\n  x: 1\n"
        assert understood(text) == understood(HEADER + ENTRY)

    def test_line_ends_of_another_system(self) -> None:
        for path in FILES:
            text = path.read_bytes()
            dos = text.replace(b"\n", b"\r\n")
            for size in (1 << 20, 4096, 17):
                assert understood(dos, size=size) == understood(text)

    @pytest.mark.parametrize("indentation", [b" ", b"    ", b"\t"])
    def test_a_dump_may_be_indented(self, indentation: bytes) -> None:
        for path in FILES:
            text = path.read_bytes()
            indented = b"".join(indentation + line for line in text.splitlines(keepends=True))
            assert understood(indented) == understood(text)

    def test_entries_may_be_indented_below_the_name(self) -> None:
        indented = b"".join(b"  " + line for line in ENTRY.splitlines(keepends=True))
        assert understood(HEADER + indented) == understood(HEADER + ENTRY)


IMITATIONS = [
    b"x\nmdt.a-MDT0000.job_stats=",
    b"x\nobdfilter.b-OST1.job_stats=",
    b"\nmdt.a.job_stats=job_stats:",
    b"x\njob_stats:",
    b"x\nhealth_check=",
    b"\nmdt.a.job_stats=\n- job_id:y",
    b"\njob_stats:\n- job_id:y",
    b"\nstart_time:1\nmdt.a.job_stats=",
    b"\n  snapshot_time:1\njob_stats:",
    b"\n  snapshot_time:1\nabcd=",
    b"\n snapshot_time:1\nab=\n- job_id:",
    b"\nmdt.a.job_stats=- job_id:y",
    b"\nfs-OST0000.job_stats=",
]

PARTS_OF_IDS = st.sampled_from([
    b"\n", b"- job_id:", b"- job_id: y", b"snapshot_time:1", b"  start_time:1", b"elapsed_time:",
    b"job_stats:", b"mdt.a.job_stats=", b"obdfilter.b-OST1.job_stats=", b"a:{ samples:1, unit:b}",
    b"a:{ samples:0, unit:b}", b"abcd=", b" ", b"x", b"\r", b"\x1b[1m", b"}", b'"', b"\xff",
])  # fmt: skip


class TestImitations:
    """Ids with line breaks, which versions up to 2.7 print as they are."""

    @pytest.mark.parametrize("imitation", IMITATIONS)
    @pytest.mark.parametrize("asked", [True, False])
    def test_they_take_nobody_elses_entries(self, imitation: bytes, asked: bool) -> None:
        assert len(imitation) <= 31
        others = [ENTRY.replace(b"r01c01", b"r01c0%d" % number) for number in range(2, 5)]
        hostile = ENTRY.replace(b"11317854:17627127:r01c01", imitation)
        text = HEADER + ENTRY + hostile + b"".join(others)
        given = ("fs-OST0000", "obdfilter") if asked else ("", "")
        found = list(parse([text], *given))
        targets = [item for item in found if isinstance(item, Target)]
        assert targets == [Target("fs-OST0000", "obdfilter")]
        ids = [
            item.job_id for item in found if isinstance(item, JobstatsEntry) and not item.is_broken
        ]
        assert [one for one in ids if "r01" in one] == [
            f"11317854:17627127:r01c0{number}" for number in range(1, 5)
        ]
        assert any(isinstance(item, Problem) for item in found)

    @given(
        st.lists(PARTS_OF_IDS, max_size=6).map(b"".join).filter(lambda raw: len(raw) <= 31),
        st.integers(0, 4),
        st.sampled_from([(), ("fs-OST0000", "obdfilter")]),
    )
    @example(raw=b"\na:{ samples:1, unit:b}", place=4, given=())
    def test_no_id_alters_or_hides_others(
        self, raw: bytes, place: int, given: tuple[str, ...]
    ) -> None:
        others = [ENTRY.replace(b"r01c01", b"r01c0%d" % number) for number in range(2, 6)]
        hostile = ENTRY.replace(b"11317854:17627127:r01c01", raw)
        whole = list(parse([HEADER + b"".join(others)], *given))
        text = HEADER + b"".join([*others[:place], hostile, *others[place:]])
        found = list(parse([text], *given))
        assert [item for item in found if item in whole] == whole
        assert not any(isinstance(item, Problem) and item.hides_entries for item in found)
        assert len([item for item in found if isinstance(item, Target)]) == 1

    def test_an_entry_that_breaks_off_leaves_the_next_target_its_own(self) -> None:
        other = HEADER.replace(b"OST0000", b"OST0001")
        for number in (2, 3):
            cut = b"".join(ENTRY.splitlines(keepends=True)[:number])
            found = understood_with_problems(HEADER + cut + other + ENTRY)
            assert found[-1] == ("fs-OST0001", "11317854:17627127:r01c01")

    def test_a_text_has_no_other_target_than_it_was_asked_for(self) -> None:
        other = HEADER.replace(b"OST0000", b"OST0001")
        found = list(parse([HEADER + ENTRY + other + ENTRY], "fs-OST0000", "obdfilter"))
        assert [item.name for item in found if isinstance(item, Target)] == ["fs-OST0000"]
        assert {item.reason for item in found if isinstance(item, Problem)} == {ELSEWHERE}

    def test_names_in_names_are_no_work(self) -> None:
        list(parse([HEADER + ENTRY + b"mdt.a.job_stats=" * 50_000 + b"\n"]))


class TestIdentifiers:
    def test_one_id_printed_three_ways_is_one(self) -> None:
        printed = [b"a:b/c", b'"a\\x3Ab\\x2Fc"', b'"a:b/c"']
        assert {canonical(raw) for raw in printed} == {"a:b/c"}

    @pytest.mark.parametrize(
        ("raw", "text"),
        [
            (b"123:45", "123:45"),
            (b"0123", "0123"),
            (b"no", "no"),
            (b"11317854:", "11317854:"),
            (b'"Web\\x20Content.1000"', "Web Content.1000"),
            (b"", ""),
            (b'"', '"'),
            (b'""', ""),
            (b'"a\\x5Cb"', "a\\\\b"),
            (b"a\\x3Ab", "a\\\\x3Ab"),
            (b"a\xffb", "a\\xffb"),
            (b'"a\\x0Ab"', "a\\x0ab"),
            ("größe".encode(), "größe"),
        ],
    )
    def test_it_is_readable(self, raw: bytes, text: str) -> None:
        assert canonical(raw) == text

    def test_spaces_at_its_ends_are_part_of_it(self) -> None:
        text = HEADER + ENTRY.replace(b"11317854:17627127:r01c01", b" x ")
        assert [entry.job_id for entry in entries(text)] == [" x "]

    @given(st.lists(st.binary(max_size=31), min_size=2, unique=True))
    def test_two_ids_are_never_one(self, ids: list[bytes]) -> None:
        # As 2.15.2 and later print them: quoted, with odd bytes escaped.
        escaped = [b'"' + b"".join(b"\\x%02X" % byte for byte in raw) + b'"' for raw in ids]
        found = {canonical(raw) for raw in escaped}
        assert len(found) == len(ids)
        assert all(text.isprintable() for text in found)

    @pytest.mark.parametrize(
        ("layout", "text"),
        [("2.5", '"ab"'), ("2.14", '"a b:c"'), ("2.15.0", '"cp"'), ("2.16", '"a:b"')],
    )
    def test_double_quotes_are_part_of_an_id_or_not(self, layout: str, text: str) -> None:
        target = SimulatedTarget("fs-X0000", "obdfilter")
        target.do(text, "sync", 1, now=1_700_000_000.0)
        target.do("a:b", "sync", 1, now=1_700_000_000.0)
        found = entries(target.parameter(layout, 1_700_000_010.0))
        assert [entry.job_id for entry in found] == [text, "a:b"]

    @pytest.mark.parametrize("number", [1, 100])
    def test_whole_seconds_and_quotes_around_a_colon(self, number: int) -> None:
        quoted = b'"11317854:17627127:r01c%02d"'
        others = [ENTRY.replace(b"11317854:17627127:r01c01", quoted % i) for i in range(number)]
        found = entries(HEADER + b"".join(others))
        assert [entry.job_id for entry in found] == [
            f"11317854:17627127:r01c{i:02d}" for i in range(number)
        ]

    @given(st.binary(max_size=31).filter(lambda raw: not raw.startswith(b'"')))
    def test_the_reference_agrees(self, raw: bytes) -> None:
        assert canonical(raw, is_escaped=False) == reference.canonical(raw)


class TestProblems:
    def test_a_line_costs_its_entry_and_no_other(self) -> None:
        broken = ENTRY.replace(b"sum: 100", b"sum: many")
        other = ENTRY.replace(b"r01c01", b"r01c02")
        found = list(parse([HEADER + broken + other]))
        assert [(e.job_id[-6:], e.is_broken) for e in found if isinstance(e, JobstatsEntry)] == [
            ("r01c01", True), ("r01c02", False),
        ]  # fmt: skip
        (problem,) = [item for item in found if isinstance(item, Problem)]
        assert problem.target == "fs-OST0000"
        assert problem.line == 5
        assert problem.text.startswith("write_bytes:")

    @pytest.mark.parametrize("end", range(1, 60, 7))
    def test_text_that_breaks_off_costs_its_last_entry(self, end: int) -> None:
        other = ENTRY.replace(b"r01c01", b"r01c02")
        text = HEADER + ENTRY + other
        cut = text[: -(len(b"  punch:           { samples:  0, unit:  reqs }\n") + end)]
        found = entries(cut)
        assert [entry.is_broken for entry in found] == [False, end > 1]

    def test_numbers_beyond_all_measure_are_no_numbers(self) -> None:
        text = HEADER + ENTRY.replace(b"sum: 100", b"sum: " + b"9" * 5000)
        assert [entry.is_broken for entry in entries(text)] == [True]

    def test_an_entry_has_no_thousands_of_operations(self) -> None:
        lines = b"".join(b"  op%d:  { samples: 1, unit: reqs }\n" % i for i in range(5000))
        (entry,) = entries(HEADER + ENTRY + lines)
        assert entry.is_broken
        assert entry.lines == []

    def test_unknown_operations_are_kept(self) -> None:
        line = b"  parallel_rename_file: { samples: 3, unit: usecs, min: 1, max: 2, sum: 4 }\n"
        (entry,) = entries(HEADER + ENTRY + line)
        assert entry.stats["parallel_rename_file"] == OperationStat(3, "usecs", 1, 2, 4)

    def test_lines_outside_of_entries_are_told(self) -> None:
        assert [problem.text for problem in problems(HEADER + b"what is this\n" + ENTRY)] == [
            "what is this"
        ]


@given(st.binary())
def test_any_bytes_are_gone_through(content: bytes) -> None:
    list(parse([content]))
    list(parse([HEADER + content + b"\n" + ENTRY]))


LINES = st.sampled_from([
    HEADER, ENTRY, b"job_stats:\n", b"mdt.x.job_stats=job_stats:\n", b"- job_id: \n", b"\n",
    b"  \n",
    b'- job_id:          "\\x"\n', b"  snapshot_time: x\n", b"snapshot_time   : 1.5 secs.nsecs\n",
    b"  read: { samples: 0, unit: reqs }\n", b"  read: { samples: 0, unit:\n", b" 5 }\n", b"a=b\n",
    b"  read: { samples: 3, unit: reqs, min: 1, max: 2, sum: 3, hist: {  } }\n", b"x" * 5000,
    b"obdfilter.y.job_stats=- job_id:          z\n", b"\x1b[3m", b"  :  { samples: 1, unit: r }\n",
])  # fmt: skip


@given(st.lists(LINES), st.lists(st.integers(0, 2000)))
def test_any_lines_in_any_pieces_say_the_same(lines: list[bytes], places: list[int]) -> None:
    text = b"".join(lines)
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    whole = [item for item in parse([text]) if not isinstance(item, Problem)]
    parts = [text[a:b] for a, b in pairwise(cuts)]
    assert [item for item in parse(parts) if not isinstance(item, Problem)] == whole


@pytest.mark.slow
def test_hostile_text_takes_linear_work() -> None:
    # Each would take hours if a quantifier gave back what it has taken.
    for line in (
        b"  " + b"a" * 200_000,
        b"  x: { samples: 1" + b", hist: {" * 50_000,
        b"=" * 200_000,
    ):
        assert len(list(parse([HEADER + ENTRY + line + b"\n" + ENTRY]))) >= 3
    many = b"".join(b"line %d\n" % i for i in range(100_000))
    assert len(problems(HEADER + ENTRY + many)) == 100_000
