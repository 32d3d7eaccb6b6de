"""Messages: which records become which messages, and where those are addressed."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from ccagent.clock import Clock
from ccagent.envelopes import (
    ErrorObject,
    MetadataObject,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleSystem,
    SysinfoEnvelope,
)
from ccagent.errors import EncodingError
from ccagent.line_protocol import decode
from ccagent.log_message import LogMessage
from ccagent.message import Message, Record, encode
from ccagent.node import Node
from ccagent.points import Point
from ccagent.transports.base import SinkSettings

META = MetadataObject(producer="ccagent", version="1")
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
        body=b'{"meta":{"producer":"ccagent","version":"1"},'
        b'"errors":[{"time":"2026-01-31T12:00:00Z","detail":"no lstopo"}]}',
    )


def test_an_envelope_is_one_line_without_its_defaults(node: Node) -> None:
    (message,) = encode([sample([1, 2])], "sonar", node)
    assert b"\n" not in message.body
    assert json.loads(message.body) == {
        "meta": {"producer": "ccagent", "version": "1"},
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
    with pytest.raises(EncodingError, match="sample envelope"):
        encode([sample(cluster="\ud800")], "sonar", node)


def test_what_a_line_cant_hold_is_an_encoding_error(node: Node) -> None:
    with pytest.raises(EncodingError):
        encode([LOAD, Point("load", {"tag": ""}, 1, 1.0)], "line", node)


def test_many_lines_are_several_messages(node: Node) -> None:
    points = [Point("load", {"hostname": f"c{number}"}, number, 1.0) for number in range(30_000)]
    messages = encode(points, "line", node)
    assert len(messages) == 3
    assert all(len(message.body) <= 512 * 1024 for message in messages)
    lines = b"".join(message.body for message in messages).splitlines()
    assert lines == encode(points[:10], "line", node)[0].body.splitlines() + lines[10:]
    assert len(lines) == 30_000
    assert lines[-1].startswith(b"load,hostname=c29999 ")


def test_a_sink_has_its_times_in_nanoseconds_if_it_wants(node: Node) -> None:
    wanted = SinkSettings(url="http://store", format="line", precision="ns")
    quoted = LogMessage("ccnc", {"hostname": "c1-1"}, 'two\nlines, "quoted"', 1.0)
    for message in encode([LOAD, MEMORY, quoted], "line", node):
        fitted = wanted.fitted(message)
        assert fitted is not None
        plain, fine = message.body.decode().splitlines(), fitted.body.decode().splitlines()
        assert [decode(text, "ns") for text in fine] == [decode(text, "s") for text in plain]
        assert replace(fitted, body=message.body) == message


def test_a_sink_takes_messages_of_its_format_alone(node: Node) -> None:
    envelope, points = encode([sample()], "sonar", node), encode([LOAD], "line", node)
    settings = SinkSettings(url="http://store", precision="ns")
    assert [settings.fitted(message) for message in [*envelope, *points]] == [*envelope, None]
