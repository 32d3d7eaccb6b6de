"""Lines that are read, lines that are refused, and the check of what they hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.records.line_protocol import CATEGORIES, Line, LineError, decode, decode_lines
from tests.support.line_checks import check_message
from tests.support.line_text import written

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
    ("text", "category", "read"),
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
            Line("rapl", SOCKET | {"method": "GET"}, "control", "", NOW_NS),
        ),
        (
            'rapl.limit,hostname=e1208,method=PUT,type=socket,type-id=2 control="150" 1740027951',
            "control",
            Line("rapl.limit", SOCKET | {"method": "PUT"}, "control", "150", NOW_NS),
        ),
        (
            'ccb,hostname=mngmt02,type=node log="archiver: alex - finished" 1740027951',
            "log",
            Line("ccb", MANAGER, "log", "archiver: alex - finished", NOW_NS),
        ),
    ],
)
def test_the_categories_of_messages(text: str, category: str, read: Line) -> None:
    assert decode(text) == read
    assert read.category == category


def test_a_query_is_a_category_and_other_fields_are_none() -> None:
    assert decode('jobs query="running"').category == "query"
    assert decode("load usage=5").category is None


VALUES = [
    (0, "0i"),
    (-7, "-7i"),
    (2**63 - 1, "9223372036854775807i"),
    (-(2**63), "-9223372036854775808i"),
    (4, "4u"),
    (2**64 - 1, "18446744073709551615u"),
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


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_values_are_read(value: float | str, text: str) -> None:
    read = decode(f"m other={text}").value
    assert (read, type(read), str(read)) == (value, type(value), str(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, True) for word in ("t", "T", "true", "True", "TRUE")),
        *((word, False) for word in ("f", "F", "false", "False", "FALSE")),
        ("007i", 7),
        ("0009223372036854775807i", 2**63 - 1),
        ("-0009223372036854775808i", -(2**63)),
        ("00018446744073709551615u", 2**64 - 1),
        ("0" * 50 + "u", 0),
        ("1", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5E-3", -0.0015),
        ("1e400000", None),
        (r'"a\b"', r"a\b"),
        ('"a\nb"', "a\nb"),
    ],
)
def test_other_forms_are_read(text: str, value: object) -> None:
    if value is None:
        with pytest.raises(LineError, match="column 9: expected a number of 64 bits, found '1'"):
            decode(f"m other={text}")
        return
    read = decode(f"m other={text}").value
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "escaped"),
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
def test_space_comma_and_equals_sign_are_escaped(text: str, escaped: str) -> None:
    read = decode(f"m,{escaped}={escaped} {escaped}=1i")
    assert read == Line("m", {text: text}, text, 1, None)


def test_in_a_measurement_the_equals_sign_is_not_escaped() -> None:
    text = r'a\,\ b=c,method=GET control="" 1740027951'
    assert decode(text) == Line("a, b=c", {"method": "GET"}, "control", "", NOW_NS)


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


@pytest.mark.slow
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
    st.integers(-(2**63), 2**64 - 1),
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
    """Return whether they are equal, with an integer never the same as a float."""
    one, other = (
        msgspec.structs.replace(each, tags=dict(sorted(each.tags.items()))) for each in (one, other)
    )
    return repr(one) == repr(other)


@pytest.mark.slow
@given(LINES)
def test_what_was_written_is_read(one: Line) -> None:
    assert same(decode(written(one), "ns"), one)


@pytest.mark.slow
@given(st.lists(LINES, max_size=5))
def test_lines_don_t_touch_each_other(lines: list[Line]) -> None:
    read = decode_lines("".join(written(one) + "\n" for one in lines), "ns")
    assert all(same(*pair) for pair in zip(read, lines, strict=True))


INSERTED = st.text('ab,= \\"#\n\r\0ué1.ie-', max_size=2)
EDITS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), INSERTED), max_size=3)


@st.composite
def nearly_lines(draw: st.DrawFn) -> str:
    text = written(draw(LINES))
    for position, removed, inserted in draw(EDITS):
        place = position % (len(text) + 1)
        text = text[:place] + inserted + text[place + removed :]
    return text


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
    assert same(decode(written(one), "ns"), one)


@given(st.one_of(st.text(), nearly_lines().map(lambda text: text + "\nload value=1\n")))
def test_bad_lines_cost_no_more_than_what_can_t_be_read(text: str) -> None:
    complaints: list[LineError] = []
    lines = list(decode_lines(text, complain=complaints.append))
    assert len(lines) + len(complaints) <= text.count("\n") + 1
    assert complaints == sorted(complaints, key=lambda error: error.line)


@pytest.mark.parametrize(
    "complete",
    [
        metric(),
        metric(1),
        metric(type="hwthread", type_id="0"),
        metric(type="accelerator", type_id="00000000:0E:00.0"),
        metric(type="socket", type_id="0", stype="filesystem", stype_id="/home"),
        message("event", "{}", "nodestate"),
        message("event", "{}", "job", function="start_job"),
        message("log", loglevel="warn"),
        message("log", level="ERROR"),
        message("query"),
        Line("topology", {"type": "node", "method": "GET"}, "control", "", NOW_NS),
        Line("rapl.limit", SOCKET | {"method": "PUT"}, "control", "150", NOW_NS),
        # As the specification recommends; only metrics suffer from it.
        message("log", loglevel="info", **{"type-id": "1"}),
        # The cluster of an event stands in its payload.
        Line("job", {"function": "stop_job", "hostname": "c", "type": "node"}, "event", "{}", 1),
    ],
)
def test_complete_messages_miss_nothing(complete: Line) -> None:
    assert check_message(complete) == []


@pytest.mark.parametrize(
    ("incomplete", "missing"),
    [
        (Line("load", {}, "value", 1, 1), ["no tag cluster", "no tag hostname", "no tag type"]),
        (Line("m", {"hostname": ""}, "log", "", 1),
         ["no tag hostname", "no tag type", "no tag loglevel of debug, info, warn, error"]),
        (Line("m", NODE, "other", 1, None), ["field 'other' is none of value, event, "]),
        (Line("m", NODE, "value", 1, None), ["no time"]),
        (Line("m", NODE, "value", "1", 1), ["the value of a metric is not a number"]),
        (Line("m", NODE, "value", True, 1), ["the value of a metric is not a number"]),
        (Line("cpu load", NODE, "value", 1, 1), ["name 'cpu load': letters, digits and '_'"]),
        (Line("m", NODE, "query", 1, 1), ["the query is not a string"]),
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
