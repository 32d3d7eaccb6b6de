"""The line protocol: what a point looks like, and what no point can hold."""

from __future__ import annotations

import math
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import EncodingError
from ccagent.records.points import Point, Tags, format_float
from tests.support.floats import is_written_as
from tests.support.line_text import line

NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}


def test_a_point_is_a_line_with_sorted_tags_and_whole_seconds() -> None:
    tags = {"type": "node", "hostname": "c1-1", "cluster": "fox"}
    assert line(Point("cpu_load", tags, 0.5, 1_700_000_000.9)) == (
        "cpu_load,cluster=fox,hostname=c1-1,type=node value=0.5 1700000000"
    )


def test_a_point_may_have_no_tags() -> None:
    assert line(Point("load", {}, 1, 1.0)) == "load value=1i 1"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0i"),
        (-7, "-7i"),
        (2**63 - 1, "9223372036854775807i"),
        (-(2**63), "-9223372036854775808i"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (-2.5e-9, "-2.5e-09"),
        (1e22, "1e+22"),
    ],
)
def test_integers_end_with_i_and_floats_are_exact(value: float, written: str) -> None:
    assert line(Point("load", {}, value, 1.0)) == f"load value={written} 1"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.0248970240000002, "1.024897024"),
        (0.1 + 0.2, "0.3"),
        (0.1 + 0.7, "0.8"),
        (-1.1 * 3, "-3.3"),
        (1e-9 * 1.1, "1.1e-09"),
        (4.35 * 100, "435.0"),
        (100 / 3, "33.333333333333336"),
        (math.pi, "3.141592653589793"),
        (2.0**53 - 1, "9007199254740991.0"),
        (2.0**60 + 256, "1.1529215046068472e+18"),
        (1.7976931348623151e308, "1.7976931348623151e+308"),
        (5e-324, "5e-324"),
        (1.0000000000000049, "1.0000000000000049"),
        (-0.0, "-0.0"),
    ],
)
def test_floats_are_written_without_remainders_of_arithmetic(value: float, written: str) -> None:
    assert format_float(value) == written
    assert line(Point("load", {}, value, 1.0)) == f"load value={written} 1"


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(-12, 12))
def test_up_to_15_digits_are_never_altered(digits: int, exponent: int) -> None:
    value = float(f"{digits}e{exponent}")
    assert format_float(value) == repr(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_altered_by_a_few_units_of_its_last_place_at_most(value: float) -> None:
    written = format_float(value)
    assert is_written_as(float(written), value)
    assert format_float(float(written)) == written
    if abs(value) >= 1e15 or len(repr(value)) < 17:
        assert float(written) == value


@pytest.mark.parametrize("time", [math.nan, math.inf, 1e300, -1e300, 2**63 // 10**9 + 1])
def test_a_time_that_no_store_can_hold_is_refused(time: float) -> None:
    with pytest.raises(EncodingError, match="time"):
        line(Point("load", NODE, 1, time))


def test_what_is_wrong_with_a_tag_is_named_in_few_words() -> None:
    with pytest.raises(EncodingError, match=r"^tag 'room': '' is empty"):
        line(Point("load", {"room": ""}, 1, 1.0))
    with pytest.raises(EncodingError) as caught:
        line(Point("load", {"room": "x" * 10_000 + "\n"}, 1, 1.0))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a b", r"a\ b"),
        ("a,b", r"a\,b"),
        ("a=b", r"a\=b"),
        ('a"b', 'a"b'),
        ("a\\b", "a\\b"),
        ("a\\,b", r"a\\,b"),
        ("nœud", "nœud"),
    ],
)
def test_space_comma_and_equals_sign_are_escaped(text: str, written: str) -> None:
    assert line(Point("m", {"tag": text}, 1, 1.0)) == f"m,tag={written} value=1i 1"
    assert line(Point("m", {text: "tag"}, 1, 1.0)) == f"m,{written}=tag value=1i 1"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(EncodingError, match=f"^{value} is not a number"):
        line(Point("load", NODE, value, 1.0))


@pytest.mark.parametrize("name", ["", "cpu load", "cpu,load", "cpu-load", "größe", "load\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(EncodingError, match="^name"):
        line(Point(name, NODE, 1, 1.0))


@pytest.mark.parametrize(
    "text",
    ["", "a\nb", "a\rb", "a\tb", "a\x00b", "a\u2028b", "a\x85b", "a\x1b[2J", "a\\", "\ud800"],
)
def test_what_would_end_or_spoil_a_line_is_refused(text: str) -> None:
    with pytest.raises(EncodingError, match=r"^tag ") as caught:
        line(Point("load", {"tag": text}, 1, 1.0))
    assert str(caught.value).isprintable()
    with pytest.raises(EncodingError, match=r"^tag "):
        line(Point("load", {text: "value"}, 1, 1.0))


def parse(text: str) -> tuple[str, dict[str, str], int | float, int]:
    """Read a line as a consumer does: a backslash means something only before `,`, `=` and ` `."""
    words: list[list[str]] = [[""]]
    separators = ""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and text[position + 1 : position + 2] in {",", "=", " "}:
            position += 1
            words[-1][-1] += text[position]
        elif character == " ":
            words.append([""])
        elif character in ",=":
            separators += character
            words[-1].append("")
        else:
            words[-1][-1] += character
        position += 1
    series, field, time = words
    name, *tags = series
    assert separators == ",=" * (len(tags) // 2) + "="
    key, value = field
    assert key == "value"
    number = int(value[:-1]) if value.endswith("i") else float(value)
    return name, dict(zip(tags[::2], tags[1::2], strict=True)), number, int(time[0])


TEXTS = st.one_of(st.text(min_size=1), st.text(alphabet='ab,= \\"#\n', min_size=1, max_size=12))


@given(
    name=st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True),
    tags=st.dictionaries(TEXTS, TEXTS, max_size=5),
    value=st.one_of(
        st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
    ),
    time=st.floats(0, 2**33),
)
def test_a_consumer_reads_what_was_written(
    name: str, tags: dict[str, str], value: float, time: float
) -> None:
    point = Point(name, tags, value, time)
    expressible = all(
        text.isprintable() and not text.endswith("\\") for pair in tags.items() for text in pair
    )
    if not expressible:
        with pytest.raises(EncodingError):
            line(point)
        return
    written = line(point)
    assert len(written.splitlines()) == 1
    read = parse(written)
    assert (read[0], read[1], read[3]) == (name, tags, int(time))
    assert is_written_as(read[2], value)
    assert type(read[2]) is type(value)
    assert list(read[1]) == sorted(tags)


def test_a_number_of_another_class_is_a_number() -> None:
    # A range looks for anything but an int itself one by one.
    class Level(IntEnum):
        HIGH = 3

    assert line(Point("level", {"hostname": "a"}, Level.HIGH, 1.0)).endswith(" value=3i 1")

    # numpy's floats are floats too, and show themselves as np.float64(0.5).
    class Share(float):
        def __repr__(self) -> str:
            return f"Share({float(self)})"

    assert line(Point("share", {}, Share(0.5), 1.0)) == "share value=0.5 1"
    with pytest.raises(EncodingError):
        line(Point("share", {}, Share(math.nan), 1.0))


def test_tags_that_points_share_are_checked_too() -> None:
    line(Point("load", Tags(NODE), 1.0, 1.0))
    with pytest.raises(EncodingError, match=r"^tag "):
        line(Point("load", Tags(hostname=""), 1.0, 1.0))
    with pytest.raises(EncodingError, match="^name"):
        line(Point("cpu load", Tags(NODE), 1.0, 1.0))
    with pytest.raises(EncodingError, match="^nan is"):
        line(Point("load", Tags(NODE), math.nan, 1.0))
