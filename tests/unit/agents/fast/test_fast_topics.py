"""Topics of one node."""

from __future__ import annotations

import pytest

from ccagent.agents.fast.protocol import FastTopics, Topic
from ccagent.agents.fast.settings import check_filters, check_root
from ccagent.errors import ConfigurationError


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
