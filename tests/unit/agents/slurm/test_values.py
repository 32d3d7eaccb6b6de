"""Values as Slurm's tools print them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm import values


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
