"""Rows of fields, whatever users put into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm.rows import Remembered, new_delimiter, split_rows

DELIMITER = b"\x1f0123\x1f"

first = st.binary(max_size=20).filter(lambda text: b"\n" not in text and DELIMITER not in text)
others = st.binary(max_size=30).filter(lambda text: b"\x1f" not in text)
rows = st.lists(
    st.tuples(first.filter(lambda text: b"\x1f" not in text), others, others), max_size=8
)


@given(rows, st.integers(1, 40))
def test_any_text_stays_in_its_field(rows: list[tuple[bytes, bytes, bytes]], size: int) -> None:
    output = b"".join(DELIMITER.join(row) + b"\n" for row in rows)
    parts = [output[begin : begin + size] for begin in range(0, len(output), size)]
    assert list(split_rows(parts, DELIMITER, 3)) == [list(row) for row in rows]


def test_a_row_that_is_cut_short_is_given_as_it_is() -> None:
    output = DELIMITER.join([b"1", b"a", b"x\n2", b"b"])
    assert list(split_rows([output], DELIMITER, 3)) == [[b"1", b"a", b"x"], [b"2", b"b"]]


def test_no_output_has_no_rows() -> None:
    assert list(split_rows([], DELIMITER, 3)) == []
    assert list(split_rows([b"\n"], DELIMITER, 3)) == []


def test_a_huge_field_costs_bounded_memory() -> None:
    parts = [DELIMITER.join([b"1", b"a", b""]), *[b"n" * 65536] * 100, b"\n2", DELIMITER, b"b",
             DELIMITER, b"c\n"]  # fmt: skip
    found = list(split_rows(parts, DELIMITER, 3))
    assert found[1] == [b"2", b"b", b"c"]
    assert len(found[0][2]) <= 2 * 1024 * 1024


def test_no_two_delimiters_are_equal() -> None:
    assert new_delimiter() != new_delimiter()


def test_large_parts_are_split_as_small_ones() -> None:
    rows = [[b"%d" % number, b"a" * (number % 700), b"b"] for number in range(700)]
    output = b"".join(DELIMITER.join(row) + b"\n" for row in rows)
    assert len(output) > 5 * 24 * 1024
    assert list(split_rows([output], DELIMITER, 3)) == rows


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
