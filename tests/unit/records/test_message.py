"""Messages: which records become which messages, and where those are addressed."""

from __future__ import annotations

import json
import math
from typing import Literal, cast

import msgspec
import pytest
from msgspec.structs import replace

from ccagent.agents.log import LogAgent, LogSettings
from ccagent.errors import EncodingError
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import (
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleJob,
    SampleProcess,
    SampleSystem,
    SysinfoEnvelope,
)
from ccagent.records.json_encoding import ErrorObject, JsonArray, MetadataObject
from ccagent.records.line_protocol import decode
from ccagent.records.message import Message, Record
from ccagent.records.points import Event, LogMessage, Point, Tags
from ccagent.transports.base import SinkSettings
from tests.support.schema import validate
from tests.support.written_lines import written_lines

META = MetadataObject(producer="ccagent", version="1.0.0")
NOW = 1_700_000_000.5


class Stopped(Clock):
    """A clock that stands still."""

    def time(self) -> float:
        return NOW


@pytest.fixture
def node() -> Node:
    return Node(hostname="c1-1.fox", cluster="fox", clock=Stopped())


def sample(cpus: list[int] | None = None, cluster: str = "fox") -> SampleEnvelope:
    attributes = SampleAttributes(
        time="2026-01-31T12:00:00Z",
        cluster=cluster,
        node="c1-1.fox",
        system=SampleSystem(boot="2026-01-01T00:00:00Z", cpus=cpus or []),
    )
    return SampleEnvelope(meta=META, data=SampleData(type="sample", attributes=attributes))


def sysinfo(detail: str) -> SysinfoEnvelope:
    return SysinfoEnvelope(
        meta=META, errors=[ErrorObject(time="2026-01-31T12:00:00Z", detail=detail)]
    )


class Payload(msgspec.Struct):
    """What an event carries."""

    number: int


def with_jobs(jobs: list[SampleJob]) -> SampleEnvelope:
    envelope = sample()
    assert envelope.data is not None
    attributes = replace(envelope.data.attributes, jobs=jobs)
    return replace(envelope, data=replace(envelope.data, attributes=attributes))


LOAD = Point("load", {"hostname": "c1-1"}, 0.5, 1_700_000_000.0)
MEMORY = Point("mem", {"hostname": "c1-1"}, 7, 1_700_000_000.0)


def test_each_envelope_is_a_message(node: Node) -> None:
    first, second = encode([sample(), sysinfo("no lstopo")], "sonar", node)
    assert first.kind == "sample"
    assert replace(second, id="") == Message(
        cluster="fox",
        node="c1-1.fox",
        kind="sysinfo",
        format="sonar",
        time=NOW,
        body=b'{"meta":{"producer":"ccagent","version":"1.0.0"},'
        b'"errors":[{"time":"2026-01-31T12:00:00Z","detail":"no lstopo"}]}',
    )


def test_an_envelope_is_one_line_without_its_defaults(node: Node) -> None:
    (message,) = encode([sample([1, 2])], "sonar", node)
    assert b"\n" not in message.body
    assert json.loads(message.body) == {
        "meta": {"producer": "ccagent", "version": "1.0.0"},
        "data": {
            "type": "sample",
            "attributes": {
                "time": "2026-01-31T12:00:00Z",
                "cluster": "fox",
                "node": "c1-1.fox",
                "system": {"boot": "2026-01-01T00:00:00Z", "cpus": [1, 2]},
            },
        },
    }


def test_line_breaks_and_other_letters_in_an_envelope(node: Node) -> None:
    (message,) = encode([sysinfo("two\nlines, größer \u2028")], "sonar", node)
    assert b"\n" not in message.body
    assert json.loads(message.body)["errors"][0]["detail"] == "two\nlines, größer \u2028"


def test_all_points_are_one_message(node: Node) -> None:
    (points,) = encode([LOAD, MEMORY], "line", node)
    expected = [
        Message(
            cluster="fox",
            node="c1-1.fox",
            kind="metrics",
            format="line",
            time=NOW,
            body=b"load,hostname=c1-1 value=0.5 1700000000\n"
            b"mem,hostname=c1-1 value=7i 1700000000\n",
        )
    ]
    assert [replace(points, id="")] == expected


def test_each_message_has_an_id_of_its_own(node: Node) -> None:
    ids = {message.id for _ in range(100) for message in encode([sample()], "sonar", node)}
    assert len(ids) == 100


def test_a_format_takes_the_records_that_it_can_carry(node: Node) -> None:
    records: list[Record] = [LOAD, sample(), MEMORY, sysinfo("none")]
    assert [m.kind for m in encode(records, "sonar", node)] == ["sample", "sysinfo"]
    (points,) = encode(records, "line", node)
    assert points.body.count(b"\n") == 2


def test_nothing_to_carry_is_no_message(node: Node) -> None:
    assert encode([], "sonar", node) == []
    assert encode([], "line", node) == []
    assert encode([LOAD], "sonar", node) == []
    assert encode([sample()], "line", node) == []


@pytest.mark.parametrize(
    ("prefix", "topic"),
    [("", "fox.sample"), ("test", "test.fox.sample"), ("a.b", "a.b.fox.sample")],
)
def test_topics(node: Node, prefix: str, topic: str) -> None:
    (message,) = encode([sample()], "sonar", node, prefix=prefix)
    assert message.topic == topic
    assert message.prefix == prefix


def test_the_topic_of_points(node: Node) -> None:
    (message,) = encode([LOAD], "line", node, prefix="test")
    assert message.topic == "test.fox.metrics"


def test_what_json_cant_hold_is_an_encoding_error(node: Node) -> None:
    with pytest.raises(EncodingError, match=r"a part of sample: cpus: a number of 71 bits"):
        encode([sample([2**70])], "sonar", node)


def test_what_a_line_cant_hold_is_an_encoding_error(node: Node) -> None:
    with pytest.raises(EncodingError, match="metric load: tag 'tag': '' is empty"):
        encode([LOAD, Point("load", {"tag": ""}, 1, 1.0)], "line", node)


class Complaints:
    """What records could not be encoded, and why."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, name: str, error: EncodingError) -> None:
        self.texts.append(f"{name}: {error}")


def encoded(node: Node, records: list[Record]) -> tuple[list[Message], list[str]]:
    complaints = Complaints()
    messages = encode(records, ("sonar", "line"), node, complain=complaints)
    return messages, complaints.texts


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (Point("load", {"room": ""}, 1, 1.0), "metric load: tag 'room': '' is empty"),
        (Point("load", Tags(room=""), 1, 1.0), "metric load: tag 'room': '' is empty"),
        (Point("cpu load", {}, 1, 1.0), "metric cpu load: name 'cpu load'"),
        (Point("load", {}, math.nan, 1.0), "metric load: nan is not a number"),
        (Point("load", {}, 2**63, 1.0), "metric load: 9223372036854775808"),
        (Point("load", {}, 2**999, 1.0), "metric load: a number of 1000 bits"),
        (Point("load", {}, 1, math.nan), "metric load: time nan is out of range"),
        (Point("load", cast("dict[str, str]", {"a": 1}), 1, 1.0), "metric load: AttributeError"),
        (Point("load", {}, cast("int", "1"), 1.0), "metric load: '1' is not a number"),
        (Event("job", "job", {}, Payload(2**70), 1.0), "event job: number: a number of 71 bits"),
        (LogMessage("a b", {}, "x", 1.0), "log message of a b: name 'a b'"),
    ],
)
def test_a_record_that_cant_be_encoded_costs_itself(
    node: Node, bad: Record, complaint: str
) -> None:
    messages, complaints = encoded(node, [LOAD, bad, MEMORY, sample()])
    assert [message.kind for message in messages] == ["sample", "metrics"]
    assert messages[1].body.count(b"\n") == 2
    assert len(complaints) == 1
    assert complaints[0].startswith(complaint)


@pytest.mark.parametrize("number", [2**64, -(2**80), math.nan, math.inf])
def test_a_process_that_cant_be_encoded_costs_itself(node: Node, number: float) -> None:
    processes = [
        SampleProcess(pid=1, cmd="good"),
        SampleProcess(pid=2, cmd="bad", cpu_util=number),
        SampleProcess(pid=3, cmd='":null'),
    ]
    jobs = [SampleJob(job=7, user="ada", epoch=0, processes=processes)]
    (message,), complaints = encoded(node, [with_jobs(jobs)])
    validate("SampleEnvelope", message.body)
    (job,) = json.loads(message.body)["data"]["attributes"]["jobs"]
    assert [process["cmd"] for process in job["processes"]] == ["good", '":null']
    assert len(complaints) == 1
    assert complaints[0].startswith("a part of sample: pid 2 cmd 'bad': cpu_util: ")


def test_a_field_of_the_node_that_cant_be_encoded_costs_itself(node: Node) -> None:
    (message,), complaints = encoded(node, [sample([1, 2**64])])
    validate("SampleEnvelope", message.body)
    assert json.loads(message.body)["data"]["attributes"]["system"] == {
        "boot": "2026-01-01T00:00:00Z"
    }
    assert complaints == ["a part of sample: cpus: a number of 65 bits"]


def test_half_characters_of_a_name_survive_as_valid_json(node: Node) -> None:
    name = b"caf\xe9 \xff".decode("utf-8", "surrogateescape") + "\ud83d"
    jobs = [
        SampleJob(job=7, user=name, epoch=0, processes=[SampleProcess(pid=1, cmd=name)]),
        SampleJob(job=8, user="ada", epoch=0, processes=[SampleProcess(pid=2, cmd="b")]),
    ]
    (message,), complaints = encoded(node, [with_jobs(jobs)])
    first, second = json.loads(message.body.decode())["data"]["attributes"]["jobs"]
    shown = "caf\ufffd \ufffd\ufffd"
    assert first == {"job": 7, "user": shown, "epoch": 0, "processes": [{"cmd": shown, "pid": 1}]}
    assert second["job"] == 8
    assert complaints == []


def test_an_element_of_an_array_that_cant_be_encoded_costs_itself(node: Node) -> None:
    items: list[dict[str, str | int | float | bool | None]]
    items = [{"name": "a", "n": None}, {"name": "b", "n": 2**64}, {"name": "c\ud800", "n": 1}]
    (message,), complaints = encoded(node, [JsonArray("lustre.jobstats", items)])
    assert json.loads(message.body) == [{"name": "a", "n": None}, {"name": "c\ufffd", "n": 1}]
    assert complaints == ["a part of lustre.jobstats: name 'b': n: a number of 65 bits"]


def test_one_reason_is_logged_and_each_record_is_counted() -> None:
    agent = LogAgent(LogSettings(), frozenset({"line"}))
    with written_lines() as lines:
        for number in range(1000):
            agent.note_unencodable("metric load", EncodingError(f"tag 'room{number}' is empty"))
    assert agent.counters.unencodable == 1000
    assert lines == [
        "agent log: metric load can't be encoded and is left out: tag 'room0' is empty"
    ]


def test_many_lines_are_several_messages(node: Node) -> None:
    points = [Point("load", {"hostname": f"c{number}"}, number, 1.0) for number in range(30_000)]
    messages = encode(points, "line", node)
    assert len(messages) == 3
    assert all(len(message.body) <= 512 * 1024 for message in messages)
    lines = b"".join(message.body for message in messages).splitlines()
    assert lines == encode(points[:10], "line", node)[0].body.splitlines() + lines[10:]
    assert len(lines) == 30_000
    assert lines[-1].startswith(b"load,hostname=c29999 ")


def test_the_size_of_a_message_is_counted_in_bytes(node: Node) -> None:
    points = [Point("load", {"name": "😀" * 50}, number, 1.0) for number in range(5000)]
    messages = encode(points, "line", node)
    assert max(len(message.body) for message in messages) <= 512 * 1024
    assert sum(message.body.count(b"\n") for message in messages) == 5000


def test_a_sink_has_its_times_in_nanoseconds_if_it_wants(node: Node) -> None:
    wanted = SinkSettings(url="http://store", format="line", precision="ns")
    quoted = LogMessage("ccnc", {"hostname": "c1-1"}, 'two\nlines, "quoted"', 1.0)
    records: list[Record] = [LOAD, MEMORY, quoted]
    for message, fitted in zip(
        encode(records, "line", node), encode(records, wanted.profile, node), strict=True
    ):
        plain, fine = message.body.decode().splitlines(), fitted.body.decode().splitlines()
        assert [decode(text, "ns") for text in fine] == [decode(text, "s") for text in plain]
        assert replace(fitted, body=message.body, id=message.id) == message


def test_precision_follows_the_kind_of_a_message(node: Node) -> None:
    # cc-metric-store takes seconds only; cc-backend's events and cc-lib's logs are nanoseconds.
    sink = SinkSettings(url="nats://broker", format="line")
    event = Event("job", "job", {"hostname": "c1-1"}, Payload(1), 7.0)
    text = LogMessage("ccnc", {"hostname": "c1-1"}, "down", 7.0)
    times = {
        message.kind: message.body.decode().split()[-1]
        for message in encode([LOAD, event, text], sink.profile, node)
    }
    assert times == {
        "metrics": "1700000000",
        "events.job": "7000000000",
        "log.ccnc": "7000000000",
    }


@pytest.mark.parametrize(
    ("url", "precision", "metric", "event"),
    [
        ("http://store/write?db=x&precision=s", "auto", "7", "7"),
        ("http://store/write?precision=ns&db=x", "auto", "7000000000", "7000000000"),
        ("http://store/write?precision=ms", "auto", "7", "7000000000"),
        ("http://store/write", "s", "7", "7"),
        ("http://store/write", "ns", "7000000000", "7000000000"),
        ("http://store/write?precision=ns", "s", "7", "7"),
    ],
)
def test_one_precision_can_be_forced(
    node: Node, url: str, precision: Literal["auto", "s", "ns"], metric: str, event: str
) -> None:
    sink = SinkSettings(url=url, format="line", precision=precision)
    records: list[Record] = [Point("load", {}, 1, 7.0), Event("job", "job", {}, Payload(1), 7.0)]
    messages = encode(records, sink.profile, node)
    assert [message.body.decode().split()[-1] for message in messages] == [metric, event]


def test_a_sink_takes_messages_of_its_format_alone(node: Node) -> None:
    settings = SinkSettings(url="http://store", precision="ns")
    (message,) = encode([LOAD, sample()], settings.profile, node)
    assert message.format == "sonar"
