"""Lines in an InfluxDB: what is encoded is taken and read back; what isn't one is refused."""

from __future__ import annotations

from itertools import count
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.records.line_protocol import (
    Line,
    LineError,
    Precision,
    decode,
    encode,
    get_control,
    put_control,
)
from tests.support.influxdb import Influx
from tests.unit.test_line_protocol import NAMES, PRINTABLE, WORDS

NOW = 1_700_000_000
NOW_NS = NOW * 10**9
NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}


def write(influx: Influx, *lines: Line, precision: Precision = "s") -> None:
    post(influx, "\n".join(encode(line, precision) for line in lines), precision)


def post(influx: Influx, text: str, precision: Precision = "s") -> None:
    request = Request(f"{influx.url}/write?db=x&precision={precision}", data=text.encode())
    with urlopen(request, timeout=5) as answer:
        assert answer.status == 204


def test_values_of_all_kinds_are_read_back(influx: Influx) -> None:
    values: dict[str, int | float | str | bool] = {
        "least": -(2**63), "most": 2**63 - 1, "real": -1.5e300, "small": 1e-300, "yes": True,
        "no": False, "empty": "", "text": 'a, b = "c" \\ \\n # \u2028 機', "end": "back\\",
    }  # fmt: skip
    write(influx, *(Line("m", NODE, field, value, NOW_NS) for field, value in values.items()))
    assert influx.query("SELECT * FROM m") == [{"time": NOW} | values | NODE]


def test_messages_are_read_back(influx: Influx) -> None:
    event = '{"jobId": 69, "name": "a \\"b\\"\\n", "user": "C:\\\\x"}'
    write(
        influx,
        Line("job", NODE | {"function": "start_job"}, "event", event, NOW_NS),
        Line("ccnc", NODE | {"loglevel": "warn"}, "log", "it's 5 > 4, \\o/", NOW_NS),
        get_control("topology", NODE, NOW_NS),
        put_control("rapl, pkg=0", NODE, "150", NOW_NS),
    )
    assert influx.query("SELECT event, function FROM job") == [
        {"time": NOW, "event": event, "function": "start_job"}
    ]
    assert influx.query("SELECT log FROM ccnc") == [{"time": NOW, "log": "it's 5 > 4, \\o/"}]
    assert influx.query("SELECT control, method FROM topology") == [
        {"time": NOW, "control": "", "method": "GET"}
    ]
    assert influx.query('SELECT control, method FROM "rapl, pkg=0"') == [
        {"time": NOW, "control": "150", "method": "PUT"}
    ]


def test_both_precisions_mean_the_same_time(influx: Influx) -> None:
    write(influx, Line("m", {}, "value", 1, NOW_NS + 999_999_999))
    write(influx, Line("m", {}, "value", 2, NOW_NS + 10**9), precision="ns")
    assert influx.query("SELECT * FROM m") == [
        {"time": NOW, "value": 1},
        {"time": NOW + 1, "value": 2},
    ]


NUMBERS = count()
TAGS = st.dictionaries(NAMES.map(lambda name: f"tag_{name}"), WORDS, max_size=4)
# Beyond 15 digits, remainders of arithmetic are not written.
FLOATS = st.floats(-1e308, 1e308).map(lambda value: float(f"{value:.15g}"))
VALUES = st.lists(
    st.tuples(
        TAGS,
        FLOATS,
        st.text(PRINTABLE, max_size=20),
        st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=20,
)


@given(values=VALUES)
def test_what_is_encoded_is_read_back(
    influx: Influx, values: list[tuple[dict[str, str], float, str, int]]
) -> None:
    name = f"m{next(NUMBERS)}"
    lines: list[Line] = []
    for number, (tags, real, text, whole) in enumerate(values):
        time = NOW_NS + number * 10**9
        lines += [
            Line(name, tags, "value", real, time),
            Line(name, tags, "log", text, time),
            Line(name, tags, "whole", whole, time),
        ]
    write(influx, *lines)
    rows = influx.query(f"SELECT * FROM {name}")
    found = [{key: value for key, value in row.items() if value is not None} for row in rows]
    # JSON has one kind of number: floats without a fraction come as integers.
    assert [row | {"value": float(row["value"])} for row in found] == [
        {"time": NOW + number, "value": real, "log": text, "whole": whole} | tags
        for number, (tags, real, text, whole) in enumerate(values)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "m",
        "m ",
        "m value",
        "m value=",
        "m value=nan",
        "m value=inf",
        "m value=1.5i",
        "m value=9223372036854775808i",
        "m value=tRUE",
        'm value="a',
        'm value="a\\"',
        "m,tag value=1",
        "m,tag= value=1",
        "m,=a value=1",
        "m,tag=a,tag=b value=1",
        "m, value=1",
        ",tag=a value=1",
        "m =1",
        "m value=1 now",
        "m value=1 1.5",
        "m value=1 9223372036854775808",
        'job event={"jobId": 1} 5',
    ],
)
def test_both_refuse(influx: Influx, text: str) -> None:
    with pytest.raises(HTTPError, match="400"):
        post(influx, text, "ns")
    with pytest.raises(LineError):
        decode(text, "ns")


@pytest.mark.parametrize(
    "text",
    [
        "m value=1",
        "m value=1.",
        "m value=-1.5E-3",
        "m value=.5 5000000000",
        "m value=007i",
        "m value=t",
        "m value=TRUE",
        "m value=F",
        "m value=False  5000000000",
        'm value="a\nb" 5000000000',
        'm value="\\\\ \\""',
        "# comment\n\n m,tag=a\\ b\\,\\=\\c value=1 -5000000000\n",
    ],
)
def test_both_read_the_same(influx: Influx, text: str) -> None:
    post(influx, text, "ns")
    line = decode(text, "ns")
    (found,) = influx.query("SELECT * FROM m")
    time = found.pop("time")
    assert found == {"value": line.value} | line.tags
    assert line.time in {None, time * 10**9}
