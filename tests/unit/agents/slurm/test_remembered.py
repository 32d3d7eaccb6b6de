"""Values of texts that recur."""

from __future__ import annotations

import pytest

from ccagent.agents.slurm.rows import Remembered


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
