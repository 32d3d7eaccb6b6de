"""Rows of fields, whatever users put into them, and values as Slurm's tools print them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm import values
from ccagent.agents.slurm.values import Remembered, new_delimiter, split_rows

DELIMITER = b"\x1f0123\x1f"

ids = st.integers(1, 999).map(lambda number: b"%d" % number)
texts = st.text("\n7\t|ab\xff", max_size=12).map(str.encode)
rows = st.lists(st.tuples(ids, ids, texts.map(lambda text: b"=" + text), texts), max_size=8)


def printed(*rows: tuple[bytes, ...]) -> bytes:
    return b"".join(DELIMITER.join([*row, b"\n"]) for row in rows)


def in_parts(output: bytes, size: int) -> list[bytes]:
    return [output[begin : begin + size] for begin in range(0, len(output), size)]


@given(rows, st.integers(1, 40))
def test_any_text_stays_in_its_field(
    rows: list[tuple[bytes, bytes, bytes, bytes]], size: int
) -> None:
    parts = in_parts(printed(*rows), size)
    assert list(split_rows(parts, DELIMITER, 4)) == [list(row) for row in rows]


@given(rows, st.integers(1, 60), st.data())
def test_damage_costs_only_damaged_rows(
    rows: list[tuple[bytes, bytes, bytes, bytes]], size: int, data: st.DataObject
) -> None:
    """A delimiter more or less, a cut row, noise instead of one: the other rows are exact."""
    output = b""
    intact: list[list[bytes]] = []
    for number, fields in enumerate(rows):
        row = (b"%d" % number, *fields[1:])
        line = printed(row)
        damage = data.draw(st.sampled_from(["none", "none", "less", "more", "cut", "noise"]))
        at = data.draw(st.integers(0, len(line) - 1))
        if damage == "less":
            line = line.replace(DELIMITER, b"", data.draw(st.integers(1, 4)))
        elif damage == "more":
            line = line[:at] + DELIMITER * data.draw(st.integers(1, 9)) + line[at:]
        elif damage == "cut":
            line = line[:at] + b"\n"
        elif damage == "noise":
            line = data.draw(texts.filter(lambda text: b"7" not in text)) + b"\n"
        else:
            intact.append(list(row))
        output += line
    found = list(split_rows(in_parts(output, size), DELIMITER, 4))
    assert [row for row in found if row in intact] == intact
    assert all(len(row) in {1, 4} for row in found)


def test_a_line_of_another_program_is_set_aside() -> None:
    output = b"module: loaded\n" + printed((b"1", b"1", b"x")) + b"bye\n"
    assert list(split_rows([output], DELIMITER, 3)) == [
        [b"module: loaded"], [b"1", b"1", b"x"], [b"bye"],
    ]  # fmt: skip


def test_a_row_that_is_cut_short_is_given_as_it_is() -> None:
    output = printed((b"1", b"1", b"x")) + DELIMITER.join([b"2", b"2"])
    assert list(split_rows([output], DELIMITER, 3)) == [[b"1", b"1", b"x"], [b"2 2"]]


def test_no_output_has_no_rows() -> None:
    assert list(split_rows([], DELIMITER, 3)) == []
    assert list(split_rows([b"\n"], DELIMITER, 3)) == []


def test_a_huge_field_costs_bounded_memory() -> None:
    parts = [DELIMITER.join([b"1", b"1", b""]), *[b"n" * 65536] * 100, DELIMITER,
             b"\n", printed((b"2", b"2", b"c"))]  # fmt: skip
    found = list(split_rows(parts, DELIMITER, 3))
    assert found[1] == [b"2", b"2", b"c"]
    assert len(found[0][2]) <= 2 * 1024 * 1024


def test_rows_without_a_job_id_cost_bounded_memory() -> None:
    """For example a release of Slurm that prints its new ids there."""
    rows = ((b"s%d" % number, b"s%d" % number, b"x") for number in range(10_000))
    found = list(split_rows(map(printed, rows), DELIMITER, 3))
    assert len(found) > 1000
    assert max(len(text) for (text,) in found) < 200


def test_no_two_delimiters_are_equal() -> None:
    assert new_delimiter() != new_delimiter()


def test_large_parts_are_split_as_small_ones() -> None:
    rows = [(b"%d" % number, b"1" * (1 + number % 700), b"b") for number in range(700)]
    output = printed(*rows)
    assert len(output) > 5 * 24 * 1024
    assert list(split_rows([output], DELIMITER, 3)) == list(map(list, rows))


def test_a_text_is_parsed_once() -> None:
    parsed: list[str] = []

    def parse(text: str) -> int:
        parsed.append(text)
        return int(text)

    numbers = Remembered(parse)
    assert [numbers[text] for text in ("7", "8", "7")] == [7, 8, 7]
    assert parsed == ["7", "8"]


def test_an_error_is_not_remembered() -> None:
    numbers = Remembered(int)
    for _ in range(2):
        with pytest.raises(ValueError, match="odd"):
            numbers["odd"]
    assert not numbers


def test_memory_is_bounded() -> None:
    numbers = Remembered(int)
    for number in range(40_000):
        assert numbers[str(number)] == number
    assert len(numbers) <= 16_384


@pytest.mark.parametrize(
    ("text", "word", "detail"),
    [
        ("COMPLETED", "COMPLETED", ""),
        ("CANCELLED by 5002", "CANCELLED", "by 5002"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", ""),
        ("CANCELLED+", "CANCELLED", ""),
    ],
)
def test_a_state_is_one_word(text: str, word: str, detail: str) -> None:
    assert values.state(text) == (word, detail)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00:00:00", 0),
        ("00:00.003", 0),
        ("00:00.500", 1),
        ("01:02.500", 63),
        ("01:02", 62),
        ("10:00:01", 36001),
        ("3-04:05:06", 3 * 86400 + 4 * 3600 + 5 * 60 + 6),
        ("", 0),
    ],
)
def test_durations_are_seconds(text: str, expected: int) -> None:
    assert values.seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "kilobytes"),
    [
        ("", 0), ("0", 0), ("4K", 4), ("3772K", 3772), ("0.01M", 11), ("1.50G", 1536 * 1024),
        ("2048", 2), ("1025", 2),
    ],
)  # fmt: skip
def test_sizes(text: str, kilobytes: int) -> None:
    assert values.kilobytes(text) == kilobytes


@pytest.mark.parametrize(
    ("text", "cpus", "nodes", "expected"),
    [
        ("4000M", 1, 1, 4000 * 1024),
        ("3000M", 2, 2, 1500 * 1024),
        ("4000Mc", 8, 2, 16000 * 1024),
        ("4Gn", 8, 2, 4 * 1024**2),
        ("0n", 8, 2, 0),
        ("0", 1, 0, 0),
        ("123", 1, 0, 123 * 1024),
        ("", 0, 0, 0),
    ],
)
def test_requested_memory_is_per_node(text: str, cpus: int, nodes: int, expected: int) -> None:
    assert values.memory_per_node(text, cpus, nodes) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:0", 0), ("3:0", 3), ("127:0", 127), ("0:125", 0), ("0:9", 0), ("", 0)],
)
def test_the_exit_code_is_what_the_job_returned(text: str, expected: int) -> None:
    assert values.exit_code(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UNLIMITED", 1),
        ("Partition_Limit", 0),
        ("", 0),
        ("0", 2),
        ("60", 62),
        ("4294901750", 4294901752),
    ],
)
def test_extended_uints(text: str, expected: int) -> None:
    assert values.parse_extended(text) == expected


def memory(text: str) -> int:
    return values.memory_per_node(text, 1, 1)


@pytest.mark.parametrize(
    "parse",
    [values.seconds, values.kilobytes, values.time_limit, values.exit_code, values.parse_extended,
     values.uint, values.moment, memory],
)  # fmt: skip
@given(st.text() | st.from_regex(r"[0-9:.KMGcn-]{1,40}"))
def test_whatever_it_is_it_is_a_uint_or_a_value_error(
    parse: Callable[[str], int], text: str
) -> None:
    try:
        assert 0 <= parse(text) < 2**64
    except ValueError:
        return


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60", 3602), ("0", 2), ("UNLIMITED", 1), ("Partition_Limit", 0), ("", 0)],
)
def test_a_time_limit_is_in_seconds_as_receivers_take_it(text: str, expected: int) -> None:
    assert values.time_limit(text) == expected
