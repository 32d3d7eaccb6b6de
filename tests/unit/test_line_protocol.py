"""The line protocol in both directions: what a line looks like, and what can't be one."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccagent.errors import EncodingError, UnparsableError
from ccagent.records.events import Event, event_line
from ccagent.records.line_protocol import (
    CATEGORIES,
    Line,
    LineError,
    Unsigned,
    check_message,
    decode,
    decode_lines,
    encode,
    get_control,
    put_control,
)
from ccagent.records.points import Point, line
from tests.support.floats import is_written_as

NOW = 1_740_027_951
NOW_NS = NOW * 10**9
NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}
SOCKET = {"hostname": "e1208", "type": "socket", "type-id": "2"}
MANAGER = {"hostname": "mngmt02", "type": "node"}


def metric(value: float = 0.5, **tags: str) -> Line:
    return Line("cpu_load", NODE | {key.replace("_", "-"): text for key, text in tags.items()},
                "value", value, NOW_NS)  # fmt: skip


def message(field: str, value: str = "x", name: str = "ccnc", **tags: str) -> Line:
    return Line(name, NODE | tags, field, value, NOW_NS)


# As the specification has them, with payloads that are strings.
@pytest.mark.parametrize(
    ("written", "category", "read"),
    [
        (
            "flops_any,hostname=e1208,type=socket,type-id=2 value=1203.3 1740027951",
            "metric",
            Line("flops_any", SOCKET, "value", 1203.3, NOW_NS),
        ),
        (
            r'job,hostname=mngmt02,type=node event="{\"jobId\": 69, \"x\": \"y\"}" 1740027951',
            "event",
            Line("job", MANAGER, "event", '{"jobId": 69, "x": "y"}', NOW_NS),
        ),
        (
            'rapl,hostname=e1208,method=GET,type=socket,type-id=2 control="" 1740027951',
            "control",
            get_control("rapl", SOCKET, NOW_NS),
        ),
        (
            'rapl.limit,hostname=e1208,method=PUT,type=socket,type-id=2 control="150" 1740027951',
            "control",
            put_control("rapl.limit", SOCKET, "150", NOW_NS),
        ),
        (
            'ccb,hostname=mngmt02,type=node log="archiver: alex - finished" 1740027951',
            "log",
            Line("ccb", MANAGER, "log", "archiver: alex - finished", NOW_NS),
        ),
    ],
)
def test_the_categories_of_messages(written: str, category: str, read: Line) -> None:
    assert decode(written) == read
    assert encode(read) == written
    assert read.category == category


def test_a_query_is_a_category_and_other_fields_are_none() -> None:
    assert decode('jobs query="running"').category == "query"
    assert decode("load usage=5").category is None


def test_tags_are_sorted() -> None:
    one = Line("load", {"type": "node", "hostname": "c1-1", "cluster": "fox"}, "value", 1, None)
    assert encode(one) == "load,cluster=fox,hostname=c1-1,type=node value=1i"


VALUES = [
    (0, "0i"),
    (-7, "-7i"),
    (2**63 - 1, "9223372036854775807i"),
    (-(2**63), "-9223372036854775808i"),
    (Unsigned(4), "4u"),
    (Unsigned(2**64 - 1), "18446744073709551615u"),
    (1.0, "1.0"),
    (-0.0, "-0.0"),
    (5e-324, "5e-324"),
    (1e22, "1e+22"),
    (True, "true"),
    (False, "false"),
    ("", '""'),
    ("a, b = c #", '"a, b = c #"'),
    ('say "\\o/"', r'"say \"\\o/\""'),
    ("a\nb\rc\td", r'"a\nb\rc\td"'),
    ("a\\nb", r'"a\\nb"'),
    ("back\\", r'"back\\"'),
    ("nœud \u2028\x7f\x85", '"nœud \u2028\x7f\x85"'),
]


@pytest.mark.parametrize(("value", "written"), VALUES)
def test_values_are_written_and_read(value: float | str, written: str) -> None:
    assert encode(Line("m", {}, "other", value, None)) == f"m other={written}"
    read = decode(f"m other={written}").value
    assert (read, type(read), str(read)) == (value, type(value), str(value))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((word, True) for word in ("t", "T", "true", "True", "TRUE")),
        *((word, False) for word in ("f", "F", "false", "False", "FALSE")),
        ("007i", 7),
        ("1", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5E-3", -0.0015),
        ("1e400000", None),
        (r'"a\b"', r"a\b"),
        ('"a\nb"', "a\nb"),
    ],
)
def test_other_forms_are_read(written: str, value: object) -> None:
    if value is None:
        with pytest.raises(LineError, match="column 9: expected a number of 64 bits, found '1'"):
            decode(f"m other={written}")
        return
    read = decode(f"m other={written}").value
    assert (read, type(read)) == (value, type(value))


class Level(enum.IntEnum):
    HIGH = 3


class Real(float):
    def __repr__(self) -> str:
        return "Real(...)"


def test_subclasses_of_numbers_are_written_as_these() -> None:
    assert encode(metric(Level.HIGH)).endswith(" value=3i 1740027951")
    assert encode(metric(Real(0.1))).endswith(" value=0.1 1740027951")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a b", r"a\ b"),
        ("a,b", r"a\,b"),
        ("a=b", r"a\=b"),
        ('a"b', 'a"b'),
        ("a\\b", "a\\b"),
        ("a\\,b", r"a\\,b"),
        ("/home", "/home"),
        ("nœud", "nœud"),
        ("#1", "#1"),
    ],
)
def test_space_comma_and_equals_sign_are_escaped(text: str, written: str) -> None:
    both = Line("m", {text: text}, "value", 1, None)
    assert encode(both) == f"m,{written}={written} value=1i"
    assert decode(encode(both)) == both
    assert decode(f"m {written}=1i").field == text


@pytest.mark.parametrize(("text", "written"), [("a b", r"a\ b"), ("a,=b", r"a\,\=b")])
def test_so_are_those_of_other_fields(text: str, written: str) -> None:
    assert encode(Line("m", {}, text, 1, None)) == f"m {written}=1i"
    with pytest.raises(EncodingError, match="^field .* with a backslash"):
        encode(Line("m", {}, f"\\{text}", 1, None))


def test_in_a_measurement_the_equals_sign_is_not_escaped() -> None:
    control = get_control("a, b=c", {}, NOW_NS)
    assert encode(control) == r'a\,\ b=c,method=GET control="" 1740027951'
    assert decode(encode(control)) == control


@pytest.mark.parametrize("value", [
    math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, Unsigned(2**64), Unsigned(-1), 10**400,
])  # fmt: skip
def test_numbers_that_no_line_can_hold_are_refused(value: float) -> None:
    for field in ("value", "other"):
        with pytest.raises(EncodingError, match=f"^m: {field} can't be "):
            encode(Line("m", {}, field, value, None))


def test_numbers_too_long_to_be_shown_are_refused() -> None:
    with pytest.raises(EncodingError, match="^m: value can't be a number of 20001 bits$"):
        encode(Line("m", {}, "value", 1 << 20_000, None))


@pytest.mark.parametrize("value", ["a\x00b", "\x1b[2J", "\x0b", "\ud800"])
def test_strings_that_would_spoil_a_message_are_refused(value: str) -> None:
    with pytest.raises(EncodingError, match="^ccnc: log can't be ") as caught:
        encode(message("log", value))
    assert str(caught.value).isprintable()


# A value of another kind ends the payload for the store, with all the lines that follow.
@pytest.mark.parametrize("value", ["text", True])
def test_a_metric_is_a_number(value: str | bool) -> None:
    with pytest.raises(EncodingError, match="^cpu_load: value can't be "):
        encode(Line("cpu_load", NODE, "value", value, NOW_NS))


@pytest.mark.parametrize("field", ["event", "log", "control", "query"])
@pytest.mark.parametrize("value", [1, 0.5, True, Unsigned(1)])
def test_other_messages_are_strings(field: str, value: float) -> None:
    with pytest.raises(EncodingError, match=f"^ccnc: {field} can't be "):
        encode(Line("ccnc", NODE, field, value, NOW_NS))


@pytest.mark.parametrize("name", ["", "cpu load", "cpu,load", "cpu-load", "größe", "load\n"])
def test_metrics_and_events_have_plain_names(name: str) -> None:
    with pytest.raises(EncodingError, match="^name "):
        encode(Line(name, NODE, "value", 1, NOW_NS))
    with pytest.raises(EncodingError, match="^name "):
        encode(message("event", name=name))


@pytest.mark.parametrize("name", ["", "#comment", "a\nb", "a\\", "a\x85"])
def test_no_name_ends_its_line_or_hides_it(name: str) -> None:
    with pytest.raises(EncodingError, match="^name "):
        encode(message("log", name=name))


@pytest.mark.parametrize(
    "text",
    ["", "a\nb", "a\rb", "a\tb", "a\x00b", "a\u2028b", "a\x85b", "a\x1b[2J", "a\\", "\ud800"],
)
def test_what_no_tag_can_hold_is_refused(text: str) -> None:
    for tags in ({"tag": text}, {text: "value"}):
        with pytest.raises(EncodingError, match=r"^tag ") as caught:
            encode(Line("load", tags, "value", 1, NOW_NS))
        assert str(caught.value).isprintable()
    with pytest.raises(EncodingError, match=r"^field "):
        encode(Line("load", {}, text, 1, NOW_NS))


def test_tags_that_have_changed_are_written_as_they_are() -> None:
    tags = {"hostname": "c1-1"}
    load = Line("load", tags, "value", 1, None)
    assert encode(load) == "load,hostname=c1-1 value=1i"
    tags["hostname"] = "c1 2"
    assert encode(load) == r"load,hostname=c1\ 2 value=1i"
    tags["cluster"] = ""
    with pytest.raises(EncodingError):
        encode(load)


@pytest.mark.parametrize(
    ("time", "seconds", "nanoseconds"),
    [
        (NOW_NS + 999_999_999, "1740027951", "1740027951999999999"),
        (0, "0", "0"),
        (-1, "0", "-1"),
        (-1_500_000_000, "-1", "-1500000000"),
        (2**63 - 1, "9223372036", "9223372036854775807"),
        (-(2**63), "-9223372036", "-9223372036854775808"),
    ],
)
def test_times_are_cut_to_seconds(time: int, seconds: str, nanoseconds: str) -> None:
    load = Line("load", {}, "value", 1, time)
    assert encode(load) == f"load value=1i {seconds}"
    assert encode(load, "ns") == f"load value=1i {nanoseconds}"
    assert decode(encode(load, "ns"), "ns") == load


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1, 1.5, True])
def test_what_is_no_time_is_refused(time: int) -> None:
    with pytest.raises(EncodingError, match="^load: time can't be "):
        encode(Line("load", {}, "value", 1, time))


def test_the_unit_of_a_time_is_told_by_its_size() -> None:
    assert decode("load value=1 1740027951").time == NOW_NS
    assert decode("load value=1 1740027951000000000").time == NOW_NS
    assert decode("load value=1 9223372036").time == 9_223_372_036 * 10**9
    assert decode("load value=1").time is None
    for milliseconds in ("1740027951000", "9223372037", "99999999999999999", "-1740027951000"):
        with pytest.raises(LineError, match="column 14: expected a time in s or ns"):
            decode(f"load value=1 {milliseconds}")


def test_the_unit_of_a_time_can_be_given() -> None:
    assert decode("load value=1 1740027951", "ns").time == NOW
    with pytest.raises(LineError, match="expected a time in s, "):
        decode("load value=1 1740027951000000000", "s")
    with pytest.raises(LineError, match="expected a time in ns, "):
        decode("load value=1 9223372036854775808", "ns")


@pytest.mark.parametrize(
    ("text", "line_number", "column", "expected", "found"),
    [
        ("", 1, 1, "a measurement", "the end"),
        ("\n\n  ,a=b value=1", 3, 3, "a measurement", "','"),
        ("load", 1, 5, "',' and a tag or ' ' and a field", "the end"),
        ("load\tvalue=1", 1, 5, "',' and a tag or ' ' and a field", r"'\t'"),
        ("load, value=1", 1, 6, "the key of a tag", "' '"),
        ("load,=b value=1", 1, 6, "the key of a tag", "'='"),
        ("load,host value=1", 1, 10, "'=' and the value of a tag", "' '"),
        ("load,host= value=1", 1, 11, "the value of a tag", "' '"),
        ("load,host=,type=node value=1", 1, 11, "the value of a tag", "','"),
        ("load,host=a=b value=1", 1, 12, "',' and a tag or ' ' and a field", "'='"),
        ("load,host=a\nvalue=1", 1, 12, "',' and a tag or ' ' and a field", "the end"),
        ("load,host=a,host=b value=1", 1, 13, "a tag that the line doesn't have yet", "'h'"),
        ("load,größe=1  ", 1, 15, "the key of a field", "the end"),
        ("load =1", 1, 6, "the key of a field", "'='"),
        ("load value", 1, 11, "'=' and the value of a field", "the end"),
        ("load value=", 1, 12, "a number, a boolean or a string", "the end"),
        ("load value=nan", 1, 12, "a number, a boolean or a string", "'n'"),
        ("load value=-Inf", 1, 12, "a number, a boolean or a string", "'-'"),
        ("load value=0x10", 1, 12, "a number, a boolean or a string", "'0'"),
        ("load value=1_000", 1, 12, "a number, a boolean or a string", "'1'"),
        ("load value=\u0661", 1, 12, "a number, a boolean or a string", "'\u0661'"),
        ("load value=1.5i", 1, 12, "a number, a boolean or a string", "'1'"),
        ("load value=-1u", 1, 12, "a number, a boolean or a string", "'-'"),
        ("load value=tRUE", 1, 12, "a number, a boolean or a string", "'t'"),
        ("load value=9223372036854775808i", 1, 12, "a number of 64 bits", "'9'"),
        ("load value=18446744073709551616u", 1, 12, "a number of 64 bits", "'1'"),
        ('load event="a', 1, 12, "a number, a boolean or a string", "'\"'"),
        ('load event="a\\"', 1, 12, "a number, a boolean or a string", "'\"'"),
        ('load event="a\ud800"', 1, 12, "a number, a boolean or a string", "'\"'"),
        ('load event={"jobId": 1} 5', 1, 12, "a number, a boolean or a string", "'{'"),
        ('load event="a"b', 1, 15, "' ' and a time or the end of the line after its only", "'b'"),
        ('load event="a\nb" c', 2, 4, "a time", "'c'"),
        ("load value=1,other=2", 1, 13, "the end of the line after its only field", "','"),
        ("load value=1 now", 1, 14, "a time", "'n'"),
        ("load value=1 1.5", 1, 15, "the end of the line after the time", "'.'"),
        ("load value=1 -", 1, 14, "a time", "'-'"),
        ("load value=1 5 6", 1, 16, "the end of the line after the time", "'6'"),
        ("load value=1\nload value=2", 2, 1, "the end of the text", "'l'"),
        ("load,a\x00=b value=1", 1, 7, "'=' and the value of a tag", r"'\x00'"),
        ("\ud800 value=1", 1, 1, "a measurement", r"'\ud800'"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what(
    text: str, line_number: int, column: int, expected: str, found: str
) -> None:
    with pytest.raises(UnparsableError) as caught:
        decode(text)
    error = caught.value
    assert isinstance(error, LineError)
    assert (error.line, error.column) == (line_number, column)
    assert expected in error.expected
    assert str(error) == (
        f"line {line_number}, column {column}: expected {error.expected}, found {found}"
    )


TEXT = """
# a comment, value=1
load value=1 5

  mem,hostname=c1  value=2i   6\x20
log,hostname=c1 log="two
lines"\r
  # the last one\r
load value=3"""


def test_empty_lines_and_comments_are_passed_over() -> None:
    assert list(decode_lines(TEXT)) == [
        Line("load", {}, "value", 1.0, 5 * 10**9),
        Line("mem", {"hostname": "c1"}, "value", 2, 6 * 10**9),
        Line("log", {"hostname": "c1"}, "log", "two\nlines", None),
        Line("load", {}, "value", 3.0, None),
    ]
    assert list(decode_lines("")) == list(decode_lines("\n \r\n# x\r\n#y")) == []


def test_the_first_error_ends_the_text() -> None:
    lines = decode_lines("load value=1\nload value\nload value=3")
    assert next(lines).value == 1
    with pytest.raises(LineError, match="line 2, column 11"):
        next(lines)


def test_an_error_that_is_complained_of_costs_its_line() -> None:
    complaints: list[LineError] = []
    text = '\nload\nload value=1\nlog log="a\nb",x=1\nload value=2\nload value="\nload value=3'
    lines = list(decode_lines(text, complain=complaints.append))
    assert [one.value for one in lines] == [1, 2, 3]
    assert [(one.line, one.column) for one in complaints] == [(2, 5), (5, 3), (7, 12)]


@pytest.mark.parametrize(
    "text",
    [
        'm event="' + "\\a" * 100_000,
        "m," + "\\," * 100_000,
        "m value=" + "1" * 100_000 + "x",
        "m value=" + "1" * 100_000 + "i",
        "m value=1 " + "1" * 100_000,
        "\n" * 100_000,
        " " * 100_000 + "\r",
    ],
)
def test_long_texts_end_soon(text: str) -> None:
    with pytest.raises(LineError):
        decode(text)


def test_many_bad_lines_are_counted_soon() -> None:
    complaints: list[LineError] = []
    assert not list(decode_lines("bad\n" * 50_000, complain=complaints.append))
    assert complaints[-1].line == 50_000


PRINTABLE = st.one_of(st.sampled_from(' ,=\\"#ab'), st.characters().filter(str.isprintable))
WORDS = st.text(PRINTABLE, min_size=1, max_size=12).filter(lambda text: not text.endswith("\\"))
NAMES = st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True)
STRINGS = st.text(
    st.one_of(st.sampled_from(' ,=\\"\n\r\tnrt'), st.characters(exclude_categories=["Cc", "Cs"]))
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(Unsigned),
    st.floats(allow_nan=False, allow_infinity=False),
)
OTHER_FIELDS = WORDS.filter(lambda text: "\\" not in text and text not in CATEGORIES)
TAGS = st.dictionaries(WORDS, WORDS, max_size=5)
TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)
LINES = st.one_of(
    st.builds(Line, NAMES, TAGS, st.just("value"), NUMBERS, TIMES),
    st.builds(Line, NAMES, TAGS, st.just("event"), STRINGS, TIMES),
    st.builds(
        Line,
        WORDS.filter(lambda text: not text.startswith("#")),
        TAGS,
        st.sampled_from(["log", "control", "query"]),
        STRINGS,
        TIMES,
    ),
    st.builds(Line, NAMES, TAGS, OTHER_FIELDS, STRINGS | NUMBERS | st.booleans(), TIMES),
)


def same(one: Line, other: Line) -> bool:
    """Whether they are equal, with an integer never the same as a float."""
    if type(one.value) is not type(other.value) or not is_written_as(one.value, other.value):
        return False
    one, other = (msgspec.structs.replace(line, value=0) for line in (one, other))
    return repr(one) == repr(other)


@given(LINES)
def test_what_was_written_is_read(one: Line) -> None:
    written = encode(one, "ns")
    assert not set(written) & set("\n\r\t\0")
    read = decode(written, "ns")
    assert list(read.tags) == sorted(one.tags)
    assert same(msgspec.structs.replace(read, tags={key: read.tags[key] for key in one.tags}), one)


@given(st.lists(LINES, max_size=5))
def test_lines_don_t_touch_each_other(lines: list[Line]) -> None:
    text = "".join(encode(one, "ns") + "\n" for one in lines)
    assert [encode(one, "ns") for one in decode_lines(text, "ns")] == text.split("\n")[:-1]


INSERTED = st.text('ab,= \\"#\n\r\0ué1.ie-', max_size=2)
EDITS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), INSERTED), max_size=3)


@st.composite
def nearly_lines(draw: st.DrawFn) -> str:
    text = encode(draw(LINES))
    for position, removed, inserted in draw(EDITS):
        place = position % (len(text) + 1)
        text = text[:place] + inserted + text[place + removed :]
    return text


def written_by(write: Callable[[], str]) -> str | None:
    """Give what is written; None if it is refused."""
    try:
        return write()
    except EncodingError:
        return None


def decoded(text: str) -> Line | LineError:
    try:
        return decode(text)
    except LineError as error:
        return error


@given(st.one_of(st.text(), nearly_lines()))
@example("m value=1\r")
@example("m value=1 \r\n\n#")
def test_a_text_is_read_or_refused(text: str) -> None:
    one = decoded(text)
    if isinstance(one, LineError):
        lines = text.split("\n")
        assert 1 <= one.line <= len(lines)
        assert 1 <= one.column <= len(lines[one.line - 1]) + 1
        return
    written = written_by(lambda: encode(one, "ns"))
    if written is None:
        return
    read = decode(written, "ns")
    assert dict(sorted(one.tags.items())) == read.tags
    assert same(msgspec.structs.replace(read, tags=one.tags), one)


@given(st.one_of(st.text(), nearly_lines().map(lambda text: text + "\nload value=1\n")))
def test_bad_lines_cost_no_more_than_what_can_t_be_read(text: str) -> None:
    complaints: list[LineError] = []
    lines = list(decode_lines(text, complain=complaints.append))
    assert len(lines) + len(complaints) <= text.count("\n") + 1
    assert complaints == sorted(complaints, key=lambda error: error.line)


@given(
    name=st.one_of(NAMES, st.text(max_size=3)),
    tags=st.dictionaries(st.one_of(WORDS, st.text(max_size=3)), st.one_of(WORDS, st.text())),
    value=st.one_of(st.integers(-(2**64), 2**64), st.floats(), st.booleans()),
    time=st.floats(-(2**33), 2**33),
)
def test_a_point_is_the_same_line(
    name: str, tags: dict[str, str], value: float, time: float
) -> None:
    nanoseconds = int(Fraction(time) * 10**9)
    assert written_by(lambda: encode(Line(name, tags, "value", value, nanoseconds))) == (
        written_by(lambda: line(Point(name, tags, value, time)))
    )


class Payload(msgspec.Struct):
    text: str
    numbers: list[int]


@given(
    name=st.one_of(NAMES, st.text(max_size=3)),
    tags=st.dictionaries(st.one_of(WORDS, st.text(max_size=3)), st.one_of(WORDS, st.text())),
    text=st.text(st.characters(exclude_categories=["Cs"])),
    time=st.integers(0, 2**33),
)
def test_an_event_is_the_same_line(name: str, tags: dict[str, str], text: str, time: int) -> None:
    payload = Payload(text, [1, 2])
    content = msgspec.json.encode(payload).decode()
    assert written_by(lambda: encode(Line(name, tags, "event", content, time * 10**9))) == (
        written_by(lambda: event_line(Event(name, "job", tags, payload, time)))
    )


@pytest.mark.parametrize(
    "complete",
    [
        metric(),
        metric(1),
        metric(Unsigned(1)),
        metric(type="hwthread", type_id="0"),
        metric(type="accelerator", type_id="00000000:0E:00.0"),
        metric(type="socket", type_id="0", stype="filesystem", stype_id="/home"),
        message("event", "{}", "nodestate"),
        message("event", "{}", "job", function="start_job"),
        message("log", loglevel="warn"),
        message("log", level="ERROR"),
        message("query"),
        get_control("topology", {"type": "node"}, NOW_NS),
        put_control("rapl.limit", NODE | {"type": "socket", "type-id": "0"}, "150", NOW_NS),
        # As the specification recommends; only metrics suffer from it.
        message("log", loglevel="info", **{"type-id": "1"}),
        # The cluster of an event stands in its payload.
        Line("job", {"function": "stop_job", "hostname": "c", "type": "node"}, "event", "{}", 1),
    ],
)
def test_complete_messages_miss_nothing(complete: Line) -> None:
    assert check_message(complete) == []
    assert encode(complete)


@pytest.mark.parametrize(
    ("incomplete", "missing"),
    [
        (Line("load", {}, "value", 1, 1), ["no tag cluster", "no tag hostname", "no tag type"]),
        (Line("m", {"hostname": ""}, "log", "", 1),
         ["no tag hostname", "no tag type", "no tag loglevel of debug, info, warn, error"]),
        (Line("m", NODE, "other", 1, None), ["field 'other' is none of value, event, "]),
        (Line("m", NODE, "value", 1, None), ["no time"]),
        (Line("m", NODE, "value", "1", 1), ["the value of a metric is no number"]),
        (Line("m", NODE, "value", True, 1), ["the value of a metric is no number"]),
        (Line("cpu load", NODE, "value", 1, 1), ["name 'cpu load': letters, digits and '_'"]),
        (Line("m", NODE, "query", 1, 1), ["the query is no string"]),
        (metric(type="cpu"), ["type 'cpu' is none of node, socket, die, "]),
        (metric(type="socket"), ["type socket without type-id"]),
        (metric(type_id="0"), ["type node with type-id"]),
        (metric(type="core", type_id="0", stype="device"), ["stype and stype-id go together"]),
        (metric(type="core", type_id="0", stype_id="sda"), ["stype and stype-id go together"]),
        (metric(stype="network", stype_id="eth0"), ["type node with stype"]),
        (message("event", name="job"), ["no tag function"]),
        (message("log", loglevel="fatal"), ["no tag loglevel of debug, info, warn, error"]),
        (message("control"), ["no tag method of GET, PUT"]),
        (message("control", method="POST"), ["no tag method of GET, PUT"]),
        (message("control", method="GET"), ["GET with a value"]),
    ],
)  # fmt: skip
def test_incomplete_messages_are_told(incomplete: Line, missing: list[str]) -> None:
    found = check_message(incomplete)
    assert len(found) == len(missing)
    assert all(one.startswith(start) for one, start in zip(found, missing, strict=True)), found


def test_a_node_may_have_a_type_id_where_that_is_wanted() -> None:
    assert check_message(metric(type_id="0"), node_id=True) == []
