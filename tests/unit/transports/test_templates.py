"""Templates with placeholders, and the rules of each protocol for topics."""

from __future__ import annotations

import pytest

from ccagent.errors import ConfigurationError
from ccagent.records.message import Message
from ccagent.transports import kafka as kafka_topics
from ccagent.transports import mqtt as mqtt_topics
from ccagent.transports.base import check_template, fill_template
from ccagent.transports.nats import fill_subject

ALL = "{prefix}.{cluster}.{node}.{kind}"


def message(prefix: str = "", node: str = "c1-1") -> Message:
    return Message("fox", node, "sample", "sonar", 0.0, b"{}", prefix)


@pytest.mark.parametrize("template", ["{clster}", "{", "a}", "{cluster", "{{cluster}}", "{}"])
def test_other_braces_are_refused(template: str) -> None:
    with pytest.raises(ConfigurationError, match="^topic: the placeholders are {prefix}, {clus"):
        check_template("topic", template)


def test_only_known_placeholders_are_taken() -> None:
    assert check_template("url", "/{kind}/a", ("kind",)) == "/x/a"
    with pytest.raises(ConfigurationError, match="^url: the placeholders are {kind};"):
        check_template("url", "/{node}", ("kind",))


def test_a_value_is_not_filled_again() -> None:
    values = {"prefix": "{node}", "cluster": "fox", "node": "n", "kind": "k"}
    assert fill_template("{prefix}.{cluster}", values) == "{node}.fox"


@pytest.mark.parametrize(
    ("prefix", "nats", "kafka", "mqtt"),
    [
        ("", "fox.c1-1.sample", "fox.c1-1.sample", "fox/c1-1/sample"),
        ("hpc", "hpc.fox.c1-1.sample", "hpc.fox.c1-1.sample", "hpc/fox/c1-1/sample"),
    ],
)
def test_an_empty_prefix_goes_with_its_separator(
    prefix: str, nats: str, kafka: str, mqtt: str
) -> None:
    sent = message(prefix)
    assert fill_subject(sent, ALL) == nats
    assert kafka_topics.fill_topic(ALL, sent) == kafka
    template = ALL.replace(".", "/")
    assert mqtt_topics.fill_topic(template, "fox", "c1-1", "sample", prefix) == mqtt


def test_each_protocol_has_its_own_characters() -> None:
    hostile = message(node="a b>*/+#")
    assert fill_subject(hostile, ALL) == "fox.a_b__/+#.sample"
    assert not kafka_topics.is_topic(kafka_topics.fill_topic(ALL, hostile))
    with pytest.raises(ValueError, match="the node 'a b>\\*/\\+#' can't be a level of a topic"):
        mqtt_topics.fill_topic("{cluster}/{node}", "fox", hostile.node, "sample", "")
    assert mqtt_topics.fill_topic("{cluster}", "fox", hostile.node, "sample", "") == "fox"
