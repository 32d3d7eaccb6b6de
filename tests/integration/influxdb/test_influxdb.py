"""Points in an InfluxDB: written through the HTTP transport, read back by query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.errors import RejectedError, RetryableError
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.points import Point
from ccagent.transports.http import HttpSettings, HttpTransport
from tests.support.influxdb import Influx

if TYPE_CHECKING:
    pass

NOW = 1_700_000_000


def write(influx: Influx, *points: Point, database: str = "x") -> None:
    settings = HttpSettings(url=f"{influx.url}/write?db={database}&precision=s", format="line")
    transport = HttpTransport(settings)
    try:
        transport.send(encode(points, "line", Node(hostname="c1-1", cluster="fox")))
    finally:
        transport.close()


def test_points_are_read_back_as_they_were(influx: Influx) -> None:
    tags = {"cluster": "fox", "hostname": "c1-1", "type": "node"}
    write(
        influx,
        Point("load", tags, 0.25, NOW + 0.9),
        Point("load", tags, 1e-300, NOW + 60),
        Point("load", tags, -1.5e300, NOW + 120),
        Point("mem", tags, 2**63 - 1, NOW),
        Point("mem", tags | {"hostname": "c1-2"}, -7, NOW),
    )
    assert influx.query("SELECT * FROM load") == [
        {"time": NOW, "value": 0.25} | tags,
        {"time": NOW + 60, "value": 1e-300} | tags,
        {"time": NOW + 120, "value": -1.5e300} | tags,
    ]
    assert influx.query("SELECT * FROM mem GROUP BY *") == [
        {"time": NOW, "value": 2**63 - 1} | tags,
        {"time": NOW, "value": -7} | tags | {"hostname": "c1-2"},
    ]


def test_integers_and_floats_stay_what_they_are(influx: Influx) -> None:
    write(influx, Point("whole", {}, 1, NOW), Point("real", {}, 1.0, NOW))
    assert influx.query("SHOW FIELD KEYS FROM whole, real") == [
        {"fieldKey": "value", "fieldType": "float"},
        {"fieldKey": "value", "fieldType": "integer"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "two words",
        " around ",
        "a,b",
        "a=b",
        "a, b = c",
        '"quoted"',
        "it's",
        "back\\slash",
        "back\\,comma",
        "\\\\server",
        "#hash",
        "Übergrößenträger",
        "机器",
        "🦊",
        "e\u0301",
    ],
)
def test_tags_survive_the_line_protocol(influx: Influx, text: str) -> None:
    write(influx, Point("load", {"cluster": "fox", "tag": text}, 1, NOW))
    assert influx.query("SELECT * FROM load") == [
        {"time": NOW, "value": 1, "cluster": "fox", "tag": text}
    ]


def test_the_keys_of_tags_survive_too(influx: Influx) -> None:
    tags = {"a key": "1", "a=key": "2", "a,key": "3", "Schlüssel": "4"}
    write(influx, Point("load", tags, 1, NOW))
    assert influx.query("SELECT * FROM load") == [{"time": NOW, "value": 1} | tags]


def test_many_points_in_one_message(influx: Influx) -> None:
    write(
        influx,
        *(
            Point("cpu", {"hostname": "c1-1", "type-id": str(core)}, core, NOW + second)
            for second in range(20)
            for core in range(256)
        ),
    )
    assert influx.query("SELECT count(value) AS n FROM cpu")[0]["n"] == 20 * 256


def test_what_the_database_refuses_is_rejected(influx: Influx) -> None:
    write(influx, Point("load", {}, 1, NOW))
    with pytest.raises(RejectedError, match=r"400 .*field type conflict"):
        write(influx, Point("load", {}, 1.5, NOW))
    with pytest.raises(RetryableError, match=r"404 .*database not found"):
        write(influx, Point("load", {}, 1, NOW), database="y")


def test_a_database_that_is_down_may_come_back(influx: Influx) -> None:
    with pytest.raises(RetryableError, match="refused"):
        write(Influx(1), Point("load", {}, 1, NOW))
    write(influx, Point("load", {}, 1, NOW))
