"""Jobstats text that is damaged: what is whole stays right, and what isn't is reported."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.jobstats import parser as jobstats
from ccagent.agents.lustre.jobstats.entry import JobstatsEntry, Problem, Target
from ccagent.agents.lustre.jobstats.parser import parse
from tests.support.effort import IS_NIGHTLY
from tests.support.lustre_server import large_text
from tests.support.paths import DATA

LUSTRE = DATA / "lustre"
FILES = sorted([*LUSTRE.glob("captures/*.txt"), *LUSTRE.glob("layouts/*.txt")])
TEXTS = {path.stem: path.read_bytes() for path in FILES}
FULL = [  # every target has at least three entries
    "jobstats_2.14.0_ddn162", "jobstats_2.14.0_ddn164", "mdt_v2_12_0", "ost_v2_14_0",
    "mdt_v2_17_0_with_empty_target", "ost_v2_15_0_to_2_15_1", "ost_v2_15_2_to_2_15_8",
    "ost_v2_16_0", "ost_v2_16_0_enable_stats_header_0", "ost_v2_5_0", "ost_v2_8_0_to_2_13",
]  # fmt: skip

STEP = 1 if IS_NIGHTLY else 7
"""Texts break off at every byte, or at each seventh."""

Content = tuple[str, str, bytes, bytes, tuple[tuple[bytes, ...], ...]]


@pytest.fixture(autouse=True, params=[0, 64], ids=["by entry", "by line"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobstats, "ENTRIES_BEFORE_LAYOUT", request.param)


def contents(text: bytes) -> tuple[list[Content], list[Problem], int]:
    """Return whole entries with their targets, what was reported, and how many are broken."""
    found: list[Content] = []
    problems: list[Problem] = []
    broken = 0
    target = ""
    for item in parse([text]):
        if isinstance(item, Target):
            target = item.name
        elif isinstance(item, Problem):
            problems.append(item)
        elif item.is_broken:
            broken += 1
        else:
            lines = tuple(line[:8] for line in item.lines)
            found.append((target, item.job_id, item.snapshot, item.start, lines))
    return found, problems, broken


def changed(before: bytes, after: bytes) -> list[Content]:
    """Return entries that the text never had, among those that count."""
    known = set(contents(before)[0])
    return [content for content in contents(after)[0] if content not in known]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a text, and the same with lines cut off, flipped, doubled, moved, lost or added."""
    text = TEXTS[draw(st.sampled_from(sorted(TEXTS)))]
    lines = text.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        other = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["cut", "flip", "double", "move", "swap", "lose", "add"])):
            case "cut":
                end = draw(st.integers(0, len(lines[place])))
                lines = [*lines[:place], lines[place][: end + 1]]
            case "flip":
                line = bytearray(lines[place])
                line[draw(st.integers(0, len(line) - 1))] ^= 1 << draw(st.integers(0, 7))
                lines[place] = bytes(line)
            case "double":
                lines.insert(other, lines[place])
            case "move":
                lines.insert(other, lines.pop(place))
            case "swap":
                lines[place], lines[other] = lines[other], lines[place]
            case "lose":
                lines.pop(place)
            case _:
                lines.insert(place, draw(st.binary(max_size=40)) + b"\n")
        if not lines:
            break
    return text, b"".join(lines)


@given(damaged())
def test_no_damage_raises_or_takes_long(texts: tuple[bytes, bytes]) -> None:
    before = time.process_time()
    list(parse([texts[1]]))
    assert time.process_time() - before < 2


def blocks(text: bytes) -> list[bytes]:
    """Split a text before each entry; the first block is what stands before all."""
    parts = text.split(b"\n- job_id:")
    entries = [b"- job_id:" + part for part in parts[1:]]
    return [parts[0] + b"\n", *(entry + b"\n" for entry in entries[:-1]), entries[-1]]


@given(st.sampled_from(FULL), st.data())
def test_whole_entries_stay_right(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    parts = blocks(text)
    place = data.draw(st.integers(1, len(parts) - 1))
    lines = parts[place].splitlines(keepends=True)
    line = data.draw(st.integers(1, len(lines) - 1))
    match data.draw(st.sampled_from(["flip", "add", "double"])):
        case "flip":
            content = bytearray(lines[line])
            content[data.draw(st.integers(0, len(content) - 2))] ^= 0x80
            lines[line] = bytes(content)
        case "add":
            lines.insert(line, data.draw(st.binary(max_size=40).filter(lambda b: b"\n" not in b)))
            lines[line] += b"\n"
        case _:
            lines.insert(line, lines[line])
    whole = contents(text)[0]
    parts[place] = b"".join(lines)
    found = contents(b"".join(parts))[0]
    assert [content for n, content in enumerate(whole, 1) if n != place] == [
        content for content in found if content != whole[place - 1]
    ]


@pytest.mark.parametrize("name", FULL)
def test_what_breaks_off_is_left_out_and_reported(name: str) -> None:
    text = TEXTS[name]
    whole = contents(text)[0]
    parts = blocks(text)
    before = b"".join(parts[:4])
    for end in {*range(0, len(parts[4]), STEP), *range(len(parts[4]) - 8, len(parts[4]))}:
        found, problems, _ = contents(before + parts[4][:end])
        if end and parts[4][:end].strip() != parts[4].strip():
            assert found == whole[:3]
            assert problems
            assert problems[-1].hides_entries
        else:
            assert found == whole[: 3 if not end else 4]


@pytest.mark.parametrize("name", FULL)
def test_a_lost_job_id_costs_two_entries(name: str) -> None:
    text = TEXTS[name]
    whole = contents(text)[0]
    parts = blocks(text)
    for place in range(5, len(parts)):
        damaged_parts = [*parts]
        damaged_parts[place] = damaged_parts[place].replace(b"- job_id", b"- jXb_id")
        found, problems, _ = contents(b"".join(damaged_parts))
        is_first = whole[place - 2][0] != whole[place - 1][0]
        lost = {place} if is_first else {place - 1, place}
        assert found == [content for n, content in enumerate(whole, 1) if n not in lost]
        assert any(problem.hides_entries for problem in problems)


def test_lines_that_grep_left_over_are_whole_entries() -> None:
    text = b"".join(large_text(200, nonzero=0.25, seed=1))
    lines = text.splitlines(keepends=True)
    left = b"".join(line for line in lines if b"samples:           0" not in line)
    assert contents(left) == contents(text)
    assert len(contents(left)[0]) == 200


@pytest.mark.parametrize("layout", ["2.5", "2.14", "2.15.2", "2.16"])
def test_both_ways_of_reading_agree(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(large_text(500, nonzero=0.25, seed=1, layout=layout))
    with monkeypatch.context() as patched:
        patched.setattr(jobstats, "ENTRIES_BEFORE_LAYOUT", 10**9)
        by_line = [item for item in parse([text]) if isinstance(item, JobstatsEntry)]
    for size in (100, 65536, 1 << 20):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        found = [item for item in parse(pieces) if not isinstance(item, Target)]
        assert found == by_line


def test_damage_everywhere_takes_linear_time() -> None:
    text = b"".join(large_text(2000, nonzero=0.25, seed=1))
    times: list[float] = []
    for part in (text[: len(text) // 4], text):
        bad = part.replace(b"  sync:", b"  sXnc;")
        before = time.process_time()
        list(parse([bad]))
        times.append(time.process_time() - before)
    assert times[1] < 12 * times[0] + 0.2
