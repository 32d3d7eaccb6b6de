"""What agents emit as lines, read by a parser that others have written: it finds what ours does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.base import Agent
from ccagent.agents.log import LogAgent, LogSettings
from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.agents.slurm.sinfo import NodeState, node_events
from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.log import logger
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.line_protocol import Line, decode
from ccagent.records.message import Format, Record
from ccagent.records.points import Event, LogMessage, Point
from tests.machines.metrics import MACHINES
from tests.machines.metrics.machine import lines
from tests.support.floats import is_written_as
from tests.support.tree import TreeNode
from tests.unit.agents.lustre.test_agent import SEED, Server
from tests.unit.agents.slurm.jobs.test_agent import Slurm, job
from tests.unit.records.test_line_protocol import NAMES, WORDS

LINE: frozenset[Format] = frozenset({"line"})
NODE = Node(hostname="c1-1", cluster="fox")

parse_line: Callable[[str], dict[str, Any]] = import_module("line_protocol_parser").parse_line


def both_read(text: str) -> Line:
    """Read a line; the other parser must find the same, and of the same types."""
    line = decode(text, "s")
    assert line.time is not None
    assert parse_line(text) == {
        "measurement": line.measurement,
        "tags": line.tags,
        "fields": {line.field: line.value},
        "time": line.time // 10**9,
    }
    assert type(parse_line(text)["fields"][line.field]) is type(line.value)
    return line


def emitted(records: list[Record], node: Node = NODE) -> list[Line]:
    """Read the messages that records become."""
    texts = [text for m in encode(records, "line", node) for text in m.body.decode().splitlines()]
    return [both_read(text) for text in texts]


def sampled(agent: Agent[Any], node: Node) -> list[Line]:
    return emitted(list(agent.sample(node)), node)


@pytest.mark.parametrize("name", MACHINES)
def test_metrics_of_machines(name: str, tmp_path: Path) -> None:
    read = [both_read(text) for text in lines(MACHINES[name], tmp_path)]
    assert len(read) > 10


def test_all_metrics_of_this_machine() -> None:
    known = MetricsAgent(MetricsSettings(), LINE)
    known.close()
    agent = MetricsAgent(MetricsSettings(include=tuple(known.metrics)), LINE)
    node = Node()
    try:
        agent.prepare(node)
        node.clock.sleep(0.1)
        names = {line.measurement for line in sampled(agent, node)}
    finally:
        agent.close()
    assert {"cpu_load", "cpu_user", "mem_used", "context_switches"} <= names


def test_a_sample_with_jobs(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", utime=300)
    read = sampled(SampleAgent(SampleSettings(), LINE), node)
    assert {"job_cpu_time", "job_processes", "mem_used"} <= {line.measurement for line in read}
    assert "7" in {line.tags.get("stype-id") for line in read}


def test_lustre(tmp_path: Path) -> None:
    server = Server(tmp_path, rates=True)
    agent = server.new_agent("line")
    server.write(SEED)
    first = sampled(agent, server.node)
    server.node.still.sleep(60)
    server.write(SEED.replace("31760384", "151760384"))
    later = sampled(agent, server.node)
    values = {line.measurement: line.value for line in later if line.tags.get("stype") == "job"}
    assert values["lustre_read_bytes"] == 151760384
    assert values["lustre_read_bw"] == 2e6
    assert len(first) < len(later)


def test_events_of_jobs(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path)
    agent = slurm.agent("line")
    ran = {"Start": "1699999000", "NodeList": "c[1-2]", "Account": 'che"m \\ \n, a=b'}
    slurm.sacct.prints(job(2, "RUNNING", **ran))
    (start,) = sampled(agent, slurm.node)
    assert isinstance(start.value, str)
    assert msgspec.json.decode(start.value)["jobId"] == 2


def test_states_of_nodes() -> None:
    state = NodeState(
        hostname='c"1\\', states=["idle"], cpus_allocated=0, memory_allocated=0,
        gpus_allocated=0, jobs_running=0,
    )  # fmt: skip
    (line,) = emitted([*node_events(NODE, [state])])
    assert isinstance(line.value, str)
    assert msgspec.json.decode(line.value)["nodes"][0]["hostname"] == 'c"1\\'


def test_logs() -> None:
    agent = LogAgent(LogSettings(), LINE)
    agent.prepare(NODE)
    try:
        logger.warning('a "quote", a \\ and\na line break\x1b[31m, \\n, größer \u2028')
        logger.error("back\\")
        first, second = sampled(agent, NODE)
    finally:
        agent.close()
    assert first.value == 'a "quote", a \\ and a line break [31m, \\n, größer  '
    assert second.value == "back\\"


TAGS = st.dictionaries(WORDS, WORDS, max_size=4)

# The other parser refuses numbers below the smallest normal one.
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False) | st.integers(
    -(2**63), 2**63 - 1
)


@pytest.mark.slow
@given(
    name=NAMES,
    tags=TAGS,
    value=NUMBERS,
    time=st.integers(0, 2**33),
)
def test_points_whatever_they_hold(
    name: str, tags: dict[str, str], value: float, time: int
) -> None:
    (message,) = encode([Point(name, tags, value, time)], "line", NODE)
    line = both_read(message.body.decode().rstrip("\n"))
    assert is_written_as(line.value, value)
    assert line == Line(name, tags, "value", line.value, time * 10**9)


class Payload(msgspec.Struct):
    text: str


@given(tags=TAGS, text=st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_whatever_they_hold(tags: dict[str, str], text: str) -> None:
    records: list[Record] = [
        Event("job", "job", tags, Payload(text), 1.0),
        LogMessage("ccnc", tags, text, 1.0),
    ]
    event, log = (
        both_read(message.body.decode().rstrip("\n")) for message in encode(records, "line", NODE)
    )
    assert isinstance(event.value, str)
    assert msgspec.json.decode(event.value) == {"text": text}
    assert isinstance(log.value, str)
    assert len(log.value) == len(text)
