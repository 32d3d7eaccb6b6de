"""The scanners of lines: the compiled one and the one in Python find the same."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ccagent.stores.metrics.groups import SeriesGroup
from ccagent.stores.metrics.known_keys import LineScanner, PureScanner, make_scanner
from tests.support.collector_traffic import CollectorSettings, collector_messages
from tests.support.paths import ROOT
from tests.unit.stores.metrics.support import NOW

CORPUS = ROOT / "tests/data"
WORDS = [
    b"load,cluster=fox,hostname=n1", b"power,hostname=n1", b"skip,hostname=n1", b"new,h=1",
    b"#", b" ", b" value=", b" value=1 ", b"1", b"-1.5e3", b"4i", b"-4i",
    b"18446744073709551615u", b"123456789012345678i", b"1234567890123456789i", b"1e400",
    b"1e-400", b".5", b"5.", b"+1", b"0.1234567890123456789", b"9" * 70, b"t", b'"a b"',
    b"nan", b"1_0", b",x=2", b"\n", b"\r\n", b"\0", b"\\", b"\xff", b"%d" % NOW,
    b"%d000" % NOW, b"%d000000000" % NOW, b"9223372036854775808", b"%d" % (NOW + 10**6),
    b"-5",
]  # fmt: skip


def scanners() -> tuple[LineScanner, LineScanner]:
    """Two scanners that know the same keys."""
    both = make_scanner(), PureScanner()
    groups = [SeriesGroup(n, NOW, 60) for n in range(2)]
    for scanner in both:
        scanner.add_all(
            [
                (b"load\nfree", b",cluster=fox,hostname=n1", groups[0], 0),
                (b"power,hostname=n1", b"", groups[1], 7),
                (b"skip,hostname=n1", b"", None, 0),
            ]
        )
    return both


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(st.sampled_from(WORDS), max_size=24).map(b"".join), st.sampled_from([0, 1, 150]))
@example(b"skip,hostname=n1 value=", 150)
@example(b"power,hostname=n1 value=1 %d\r" % NOW, 150)
@example(b"power,hostname=n1 value=1 %d\0\n" % NOW, 150)
@example(b"power,hostname=n1", 150)
def test_both_scanners_find_the_same(body: bytes, most: int) -> None:
    compiled, pure = scanners()
    for _ in range(2):  # the second time with guesses
        found = compiled.scan(body, NOW - 3600, NOW + 3600, most)
        assert repr(found) == repr(pure.scan(body, NOW - 3600, NOW + 3600, most))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 20))
def test_both_scanners_parse_each_number_as_python_does(value: float, digits: int) -> None:
    for text in (repr(value), f"{value:.{digits}e}", f"{value:.{digits}g}"):
        line = f"power,hostname=n1 value={text} {NOW}\n".encode()
        compiled, pure = scanners()
        found = compiled.scan(line, NOW, NOW, 1)
        assert repr(found) == repr(pure.scan(line, NOW, NOW, 1))


def test_both_scanners_find_the_same_in_recorded_messages() -> None:
    """In messages in the forms of cc-metric-collector, and in files that are no line protocol."""
    bodies = [path.read_bytes() for path in sorted(CORPUS.rglob("*")) if path.is_file()]
    for changes in (CollectorSettings(), CollectorSettings("s", True, True, line_end="\r\n")):
        bodies += collector_messages("n1", NOW, 7, changes)
    lines = [line for body in bodies for line in body.splitlines(keepends=True)]
    compiled, pure = make_scanner(), PureScanner()
    groups = [SeriesGroup(n, NOW, 60) for n in range(9)]
    chosen = random.Random(34)
    for column, line in enumerate(lines):
        key = line.partition(b" ")[0].strip()
        if key and b"#" not in key and chosen.random() < 0.9:
            group = chosen.choice([*groups, None])
            compiled.add_all([(key, b"", group, column)])
            pure.add_all([(key, b"", group, column)])
    for number in range(0, len(lines), 100):
        body = b"".join(chosen.sample(lines, min(100, len(lines))) + lines[number : number + 100])
        found = compiled.scan(body, 0, NOW + 10, 150)
        assert repr(found) == repr(pure.scan(body, 0, NOW + 10, 150))
    assert len(compiled) == len(pure)


def test_a_scanner_refuses_what_is_no_message() -> None:
    compiled, _ = scanners()
    for wrong in (bytearray(b"a"), "a", None):
        with pytest.raises(TypeError):
            compiled.scan(wrong, 0, 1, 1)  # type: ignore[arg-type]


def test_plain_lines_with_the_same_tags_and_time_are_left_as_a_run() -> None:
    texts = [
        b"load,h=1 value=1 %d\n", b"free,h=1 value=2 %d\r\n", b"power,hostname=n1 value=3 %d\n",
        b"used,h=1 value=4 %d\n", b"# %d\n", b"used,h=1 value=5 %d\n", b"load value=true %d\n",
        b"load,h=2 value=6 %d",
    ]  # fmt: skip
    lines = [text % NOW for text in texts]
    for scanner in scanners():
        found = scanner.scan(b"".join(lines), NOW, NOW, 150)
        assert found is not None
        assert [(*run[:1], *run[2:4], *struct.unpack(f"={len(run[4]) // 8}d", run[4]), run[6])
                for run in found[1]] == [
            (1, b"load\nfree", b",h=1", 1, 2, None),
            (4, b"used", b",h=1", 4, NOW),
            (6, b"used", b",h=1", 5, None),
            (7, b"", b"", None),
            (8, b"load", b",h=2", 6, None),
        ]  # fmt: skip
        assert found[1][0][1] == b"".join(lines[:2])[:-1]
