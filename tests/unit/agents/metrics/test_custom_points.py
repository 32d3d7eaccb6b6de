"""Line protocol of commands and files: what a line may tell, and what it may not claim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.custom import TYPES, CustomMetrics, parse_points
from ccagent.agents.metrics.readers.base import NODE, Gauge, Scope, is_sendable
from ccagent.machine.node import Node
from ccagent.records.points import NAME, Point
from tests.support.line_text import line

NODE_OF_FOX = Node(hostname="c1-1", cluster="fox")


def parsed(text: str | bytes) -> tuple[list[Gauge], list[str]]:
    """Return the values of a text, and the complaints."""
    content = text if isinstance(text, bytes) else text.encode()
    complaints: list[str] = []
    return [*parse_points(content, "fox", "c1-1", complaints.append)], complaints


def told(metrics: CustomMetrics, source: str, text: str) -> tuple[list[Gauge], list[str]]:
    errors: list[str] = []
    return metrics.gauges(source, text.encode(), NODE_OF_FOX, errors), errors


@pytest.mark.parametrize(
    ("text", "gauge"),
    [
        ("jobs value=3", Gauge("jobs", 3.0)),
        ("jobs value=3i 1700000000", Gauge("jobs", 3.0)),
        ("jobs,type=node,type-id=0 value=-2.5e3", Gauge("jobs", -2500.0)),
        ("t,type=hwthread,type-id=17 value=1u", Gauge("t", 1.0, Scope("hwthread", "17"))),
        ("t,type=llc,type-id=2 value=1", Gauge("t", 1.0, Scope("llc", "2"))),
        (
            "d,stype=device,stype-id=a\\ b value=1",
            Gauge("d", 1.0, Scope("node", "", "device", "a b")),
        ),
        (
            "a,type=accelerator,type-id=0000:0e:00.0 value=1",
            Gauge("a", 1.0, Scope("accelerator", "00000000:0E:00.0")),
        ),
        (
            "a,type=accelerator,type-id=ve0 value=1",
            Gauge("a", 1.0, Scope("accelerator", "ve0")),
        ),
        ("jobs,cluster=fox,hostname=c1-1 value=3", Gauge("jobs", 3.0)),
    ],
)
def test_a_line_is_a_value_of_a_place(text: str, gauge: Gauge) -> None:
    assert parsed(text) == ([gauge], [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jobs,hostname=c1-2 value=3", "jobs: hostname 'c1-2' is not this one, 'c1-1'"),
        ("jobs,cluster=wolf value=3", "jobs: cluster 'wolf' is not this one, 'fox'"),
        ('job event="start"', "job: event is no metric, whose field is value=NUMBER"),
        ("jobs value=true", "jobs: value is no metric"),
        ('jobs value="3"', "jobs: value is no metric"),
        ("jobs count=3", "jobs: count is no metric"),
        ("a-b value=3", "a-b: a metric's name has letters, digits and '_' only"),
        (f"{'a' * 300} value=3", "letters, digits"),
        ("t,type=thread,type-id=1 value=1", "t: type 'thread' is none of node, socket, die"),
        ("t,type=hwthread value=1", "t: type hwthread needs a number as type-id, not ''"),
        ("t,type=socket,type-id=-1 value=1", "needs a number as type-id, not '-1'"),
        ("t,type=core,type-id=1234567890 value=1", "needs a number"),
        ("t,type=accelerator value=1", "t: type accelerator needs a type-id"),
        ("t,stype=device value=1", "t: stype and stype-id go together"),
        ("t,stype-id=sda value=1", "t: stype and stype-id go together"),
        ("t,stype=a,stype-id=b\u00a0c value=1", "t: a tag cannot be sent: 'b\\xa0c'"),
        (f"t,stype=a,stype-id={'b' * 300} value=1", "t: a tag cannot be sent"),
        ("t value=1,count=2", "line 1, column 10: expected"),
        ("t value=nan", "line 1, column 9: expected a number"),
        ("t value=1e999", "line 1, column 9: expected a number of 64 bits"),
    ],
)
def test_a_bad_line_costs_itself_and_is_said(text: str, reason: str) -> None:
    gauges, (complaint,) = parsed(f"{text}\ngood value=1\n")
    assert gauges == [Gauge("good", 1.0)]
    assert reason in complaint


def test_an_error_of_the_form_tells_line_and_column() -> None:
    gauges, complaints = parsed("a value=1\n\n# comment\nb valu\xff\nc value=2\n".encode("latin-1"))
    assert gauges == [Gauge("a", 1.0), Gauge("c", 2.0)]
    assert [complaint[:17] for complaint in complaints] == ["line 4, column 7:"]


def test_tags_that_make_no_place_are_left_out_and_said() -> None:
    gauges, complaints = parsed("t,unit=degC,sensor=a value=1")
    assert gauges == [Gauge("t", 1.0)]
    assert complaints == ["t: tag 'sensor' is dropped: it is not part of a scope"]


@given(
    st.binary(max_size=300)
    | st.text('abt,=\\ "\n#value01.e-stypeid:node\u00a0\x00', max_size=300).map(str.encode)
)
def test_whatever_is_written_values_can_be_sent(content: bytes) -> None:
    for gauge in parsed(content)[0]:
        assert NAME.fullmatch(gauge.metric)
        assert gauge.scope.type in TYPES
        tags = dict(zip(("type", "type-id", "stype", "stype-id"), gauge.scope, strict=True))
        line(Point(gauge.metric, {key: tag for key, tag in tags.items() if tag}, gauge.value, 0))


@given(st.text())
def test_a_tag_that_is_sendable_is_sent(text: str) -> None:
    if text and is_sendable(text):
        assert line(Point("a", {"stype": text}, 1, 0))


def test_metrics_are_known_when_they_are_told() -> None:
    metrics = CustomMetrics(())
    told(metrics, "command a", "t value=1\nt,type=socket,type-id=0 value=2\njobs value=3")
    assert set(metrics.metrics) == {"t", "jobs"}
    metric = metrics.metrics["t"]
    assert (metric.unit, metric.type, metric.source) == ("", "socket", "command a")
    assert metrics.metrics["jobs"].type == "node"


def test_the_value_of_the_node_comes_last() -> None:
    text = "t value=1\nt,stype=device,stype-id=sda value=2\nt,type=socket,type-id=0 value=3"
    gauges, errors = told(CustomMetrics(()), "file a", text)
    assert [gauge.value for gauge in gauges] == [2.0, 3.0, 1.0]
    assert gauges[-1].scope == NODE
    assert errors == []


def test_a_place_has_one_value() -> None:
    text = "t,sensor=a value=1\nt,sensor=b value=2\nt,type=node,type-id=0 value=3"
    gauges, errors = told(CustomMetrics(()), "file a", text)
    assert gauges == [Gauge("t", 1.0)]
    assert errors == [
        "file a: t: tag 'sensor' is dropped: it is not part of a scope",
        "file a: t: two values of the same scope",
    ]


def test_a_metric_is_told_by_one_source() -> None:
    metrics = CustomMetrics({"cpu_load"})
    assert told(metrics, "command a", "jobs value=1") == ([Gauge("jobs", 1.0)], [])
    gauges, errors = told(metrics, "file b", "jobs value=2\ncpu_load value=3\nmine value=4")
    assert gauges == [Gauge("mine", 4.0)]
    assert errors == [
        "file b: jobs: a metric of command a",
        "file b: cpu_load: a metric of ccagent has this name",
    ]
    assert told(metrics, "command a", "jobs value=5") == ([Gauge("jobs", 5.0)], [])


def test_names_are_bounded() -> None:
    metrics = CustomMetrics(())
    text = "\n".join(f"m{number} value=1" for number in range(1020))
    gauges, errors = told(metrics, "file a", text)
    assert len(gauges) == len(metrics.metrics) == 1000
    assert errors[0] == "file a: m1000: there are 1000 metrics of commands and files already"
    assert errors[-1] == "file a: 10 more complaints"
    assert len(errors) == 11
    assert len(told(metrics, "file a", text)[0]) == 1000


@pytest.mark.slow
def test_values_are_bounded() -> None:
    text = "\n".join(f"m,type=core,type-id={number} value=1" for number in range(20_100))
    gauges, errors = told(CustomMetrics(()), "file a", text)
    assert len(gauges) == 20_000
    assert errors == ["file a: more than 20000 values: the rest is dropped"]
