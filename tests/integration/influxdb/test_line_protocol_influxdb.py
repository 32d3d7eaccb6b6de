"""Lines in an InfluxDB: what is encoded is taken and read back; what isn't one is refused."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.machine.node import Node
from ccagent.records.encoding import Profile, encode
from ccagent.records.line_protocol import LineError, decode
from ccagent.records.points import Event, LogMessage, Point
from tests.unit.records.test_line_protocol import NAMES, PRINTABLE, WORDS

if TYPE_CHECKING:
    from ccagent.records.line_protocol import Precision
    from ccagent.records.message import Record
    from tests.support.influxdb import Influx

NOW = 1_700_000_000
NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}


class Job(msgspec.Struct):
    """A payload with text that has to be escaped twice."""

    id: int
    name: str
    user: str


def write(influx: Influx, *records: Record, precision: Precision = "s") -> None:
    """Write records as the sinks do."""
    profile = Profile(format="line", precision=precision)
    for message in encode(records, profile, Node(hostname="c1-1", cluster="fox")):
        post(influx, message.body.decode(), precision)


def post(influx: Influx, text: str, precision: Precision = "s") -> None:
    request = Request(f"{influx.url}/write?db=x&precision={precision}", data=text.encode())
    with urlopen(request, timeout=5) as answer:
        assert answer.status == 204


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -1.5e300, 1e-300])
def test_numbers_of_any_size_are_read_back(influx: Influx, value: float) -> None:
    write(influx, Point("m", NODE, value, NOW))
    assert influx.query("SELECT * FROM m") == [{"time": NOW, "value": value} | NODE]


def test_messages_are_read_back(influx: Influx) -> None:
    job = Job(69, 'a "b"\n', "C:\\x")
    text = 'it\'s 5 > 4, \\o/ a, b = "c" \\ \\n # 機 back\\'
    write(
        influx,
        Event("job", "job", NODE | {"function": "start_job"}, job, NOW),
        LogMessage("ccnc", NODE | {"loglevel": "warn"}, text, NOW),
    )
    (found,) = influx.query("SELECT event, function FROM job")
    assert msgspec.json.decode(str(found["event"]), type=Job) == job
    assert (found["time"], found["function"]) == (NOW, "start_job")
    assert influx.query("SELECT log FROM ccnc") == [{"time": NOW, "log": text}]


def test_both_precisions_mean_the_same_time(influx: Influx) -> None:
    write(influx, Point("m", {}, 1, NOW + 0.9))
    write(influx, Point("m", {}, 2, NOW + 1), precision="ns")
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
    records: list[Record] = []
    for number, (tags, real, text, whole) in enumerate(values):
        time = NOW + number
        records += [
            Point(name, tags, real, time),
            LogMessage(name, tags, text, time),
            Point(f"{name}_whole", tags, whole, time),
        ]
    write(influx, *records)
    rows = influx.query(f"SELECT * FROM {name}")
    found = [{key: value for key, value in row.items() if value is not None} for row in rows]
    # JSON has one kind of number: floats without a fraction come as integers.
    assert [row | {"value": float(row["value"])} for row in found] == [
        {"time": NOW + number, "value": real, "log": text} | tags
        for number, (tags, real, text, _) in enumerate(values)
    ]
    rows = influx.query(f"SELECT value FROM {name}_whole")
    assert [row["value"] for row in rows] == [whole for *_, whole in values]


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
