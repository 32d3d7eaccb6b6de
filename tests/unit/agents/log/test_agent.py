"""The agent `log`: complaints of ccagent on their way to others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccagent.agents.log import LogAgent, LogSettings
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.machine.node import Node
from ccagent.records.encoding import encode

NODE = Node(hostname="c1-1", cluster="fox")


@pytest.fixture
def agent() -> Iterator[LogAgent]:
    agent = LogAgent(LogSettings(), frozenset({"line"}))
    agent.prepare(NODE)
    yield agent
    agent.close()


def lines(agent: LogAgent) -> list[str]:
    messages = encode(agent.sample(NODE), "line", NODE)
    assert {message.topic for message in messages} <= {"fox.log.ccnc"}
    return [line for message in messages for line in message.body.decode().splitlines()]


def test_warnings_and_errors_are_sent_once(agent: LogAgent) -> None:
    logger.warning("sink %s: down", "a")
    logger.error("it hangs")
    logger.info("all is well")
    logger.warning("sink %s: down", "a")
    first, second = lines(agent)
    assert first.startswith(
        'ccnc,cluster=fox,hostname=c1-1,loglevel=warn,type=node log="sink a: down" '
    )
    assert 'loglevel=error,type=node log="it hangs" ' in second
    assert lines(agent) == []


def test_no_text_breaks_a_line(agent: LogAgent) -> None:
    logger.error('a "quote", a \\ and\na line break\x1b[31m %s', "\u2028")
    (line,) = lines(agent)
    assert 'log="a \\"quote\\", a \\\\ and a line break [31m  " ' in line


def test_the_latest_are_kept(agent: LogAgent) -> None:
    for number in range(2000):
        logger.error("number %d", number)
    found = lines(agent)
    assert len(found) == 1000
    assert "number 1999" in found[-1]


def test_a_closed_one_listens_no_longer() -> None:
    agent = LogAgent(LogSettings(level="error"), frozenset({"line"}))
    agent.prepare(NODE)
    agent.close()
    logger.error("nobody hears this")
    assert lines(agent) == []


@pytest.mark.parametrize("component", ["", "a b", "a.b", "ccnc\n"])
def test_a_component_is_a_name(component: str) -> None:
    with pytest.raises(ConfigurationError, match="component"):
        convert({"component": component}, LogSettings, "agents.log", place="x")
