"""The keys of [agents.fast], and the topics below its root."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.agents.base import agent_class
from ccagent.agents.fast.agent import FastAgent
from ccagent.agents.fast.protocol import FastTopics, Topic
from ccagent.agents.fast.settings import check_filters, check_root
from ccagent.config.configuration import check
from ccagent.errors import ConfigurationError


def _check(**keys: Any) -> None:
    table = {key.replace("_", "-"): value for key, value in keys.items()}
    check(
        {
            "cluster": "fox",
            "agents": {"fast": table},
            "sinks": {"o": {"url": "stdout:", "format": "line"}},
        },
        "f",
    )


def test_it_is_an_agent_with_defaults_for_all_keys() -> None:
    assert agent_class("fast") is FastAgent
    _check()
    _check(url="mqtt://127.0.0.1")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"url": "http://broker"}, "agents.fast.url: expected mqtt://, mqtts://, ws://, wss://"),
        ({"url": "mqtt://a", "topic": "a/#"}, "agents.fast.topic: one or more levels"),
        (
            {"url": "mqtt://a", "ca-file": "/x"},
            "ca-file, certificate-file and insecure are for TLS",
        ),
        ({"url": "mqtt://a", "user": "x"}, "agents.fast.user and password-file need each other"),
        ({"url": "mqtt://a", "client-id": "{x}"}, "agents.fast.client-id: the placeholders are"),
        ({"url": "mqtt://a", "answer-limit": "0s"}, "agents.fast.answer-limit: from 1ms to 1d"),
        ({"url": "mqtt://a", "accept-from": ["#"]}, "agents.fast.accept-from: '#'"),
        ({"user": "x"}, "agents.fast.url: missing"),
        ({"state-directory": "x"}, "agents.fast.state-directory: an absolute path is needed"),
        ({"max-rate": 0}, "agents.fast.max-rate"),
        ({"max-rate": 11}, "agents.fast.max-rate"),
        ({"communication-high": 1}, "agents.fast.communication-high: less than"),
        ({"runtime-high": "1s"}, "agents.fast.runtime-high: less than runtime-medium"),
        ({"relay": "some"}, "agents.fast.relay"),
    ],
)
def test_what_cant_work_is_refused_with_its_key(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _check(**keys)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("module", "library", "keys"),
    [("yaml", "PyYAML", {"url": "mqtt://a"}), ("numpy", "numpy", {"mmbwmon": True})],
)
def test_a_missing_library_is_named_with_its_remedy(
    module: str, library: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> str | None:
        return None if name == module else name

    monkeypatch.setattr("importlib.util.find_spec", find)
    with pytest.raises(ConfigurationError, match=f"is missing: .* -m pip install .*{library}"):
        _check(**keys)


def test_the_topics_of_the_specification() -> None:
    topics = FastTopics("fast", "c1")
    assert topics.fixed() == [
        "fast/agent/c1/task/#", "fast/migfra/c1/result", "fast/agent/c1/mmbwmon/request",
    ]  # fmt: skip
    assert topics.status == "fast/agent/c1/status"
    assert topics.bandwidth_response == "fast/agent/c1/mmbwmon/response"
    assert topics.of_job("7") == ["fast/application/7/status", "fast/application/7/KPIs"]
    assert topics.of_job("+")[0] == "fast/application/+/status"
    assert topics.of_job("#") == topics.of_job("a/b") == []


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("fast/agent/c1/task", Topic("agent task", "task")),
        ("fast/agent/c1/task/init_agent", Topic("agent task", "init_agent")),
        ("fast/agent/c1/mmbwmon/request", Topic("bandwidth request", "request")),
        ("fast/migfra/c1/result", Topic("machine result")),
        ("fast/application/7/status", Topic("application status", "", "7")),
        ("fast/application/7/KPIs", Topic("application kpis", "", "7")),
        ("fast/agent/c2/task", None),
        ("fast/agent/c1/tasks", None),
        ("fast/agent/c1/status", None),
        ("fast/application/7/8/KPIs", None),
        ("", None),
    ],
)
def test_what_a_topic_is_about(topic: str, found: Topic | None) -> None:
    assert FastTopics("fast", "c1").find(topic) == found


def test_tasks_are_taken_from_other_topics_alone() -> None:
    topics = FastTopics("fast", "c1", ["site-a/{topic}/agent/{node}/task/+"])
    assert topics.tasks == ["site-a/fast/agent/c1/task/+"]
    assert topics.find("site-a/fast/agent/c1/task/init_agent") is not None
    assert topics.find("fast/agent/c1/task/init_agent") is None


@pytest.mark.parametrize("root", ["", "a+b", "#", "/fast", "$SYS", "a\0", "{node}", "x" * 2000])
def test_a_root_that_is_none_is_refused(root: str) -> None:
    with pytest.raises(ConfigurationError, match=r"agents\.fast\.topic"):
        check_root(root, "agents.fast")


@pytest.mark.parametrize(
    "text",
    ["", "#", "+/{node}", "a/{node}/#/b", "a/{node}b+/c", "fast/task/#", "{x}/{node}", "$s/{node}"],
)
def test_a_filter_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"agents\.fast\.accept-from"):
        check_filters([text])
