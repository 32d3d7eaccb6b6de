"""Partitions and nodes out of sinfo."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm import sinfo
from ccagent.agents.slurm.cluster import ClusterAgent, ClusterSettings
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import ClusterEnvelope
from tests.support.schema import validate
from tests.support.slurm_recorded import DIRECTORY


def no_complaint(text: str) -> None:
    pytest.fail(text)


def test_recorded_partitions() -> None:
    content = (DIRECTORY / "mid-sinfo-partitions.txt").read_bytes()
    found = sinfo.parse_partitions(content, no_complaint)
    assert [(one.name, one.nodes) for one in found] == [
        ("normal", ["c1-[1-2,8-10]", "c2-[01-03]"]),
        ("bigmem", ["bigmem1"]),
        ("accel", ["gpu-1"]),
        ("urgent", ["c1-[1-2]", "gpu-1"]),
        ("low", ["c1-[1-2]"]),
        ("hidden_part", ["bigmem1", "gpu-1"]),
        ("empty", []),
    ]


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        ("c1-[1-2],c2-[1-2]", ["c[1-2]-[1-2]"]),
        ("c1-[1-2],c2-[1-3]", ["c1-[1-2]", "c2-[1-3]"]),
        ("n[08-99],n[100-120]", ["n[08-99,100-120]"]),
        ("n[08-120]", ["n[08-99,100-120]"]),
        ("gpu-1,c1-[1-2]", ["gpu-1", "c1-[1-2]"]),
        ("c1-1.fox,c2-1.fox", ["c[1-2]-1.fox"]),
    ],
)
def test_a_partition_has_one_range_if_possible(hosts: str, nodes: list[str]) -> None:
    """slurm-monitor keeps the nodes of the last range only."""
    (found,) = sinfo.parse_partitions(f"normal*|{hosts}|\n".encode(), no_complaint)
    assert found.nodes == nodes


def test_lines_of_one_partition_share_a_range() -> None:
    content = b"low|c1-[1-2]|\nlow|c1-[2-4]|\n"
    (found,) = sinfo.parse_partitions(content, no_complaint)
    assert found.nodes == ["c1-[1-4]"]


def test_recorded_nodes() -> None:
    content = (DIRECTORY / "mid-sinfo-nodes.txt").read_bytes()
    found = sinfo.parse_nodes(content, no_complaint)
    assert [(one.names, one.states) for one in found] == [
        (["c1-[8-10]", "c2-[01-03]"], ["DOWN", "NOT_RESPONDING"]),
        (["c1-1"], ["MIXED"]),
        (["bigmem1", "c1-2", "gpu-1"], ["IDLE"]),
    ]


def test_before_21_08_the_state_is_the_long_one() -> None:
    """Slurm 20.11 leaves the unknown field StateComplete empty."""
    (nodes,) = sinfo.parse_nodes(b"c[1-2]||down*|\n", no_complaint)
    assert nodes.states == ["DOWN"]
    (state,) = sinfo.parse_node_states(b"c1||1/7/0/8|300|(null)|mixed|\n", Counter(), no_complaint)
    assert state.states == ["mixed"]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:(null):3(IDX:0-2)", 3),  # no type, until Slurm 25.11
        ("gpu:(null):0(IDX:N/A)", 0),
        ("gpu:2(IDX:0,3)", 2),
        ("gpu:a100:0(IDX:N/A),gpu:a100_1g.5gb:4(IDX:2-5)", 4),
        ("vgpu:8,gpu:h100:1(S:0),mygpu:a:2(IDX:0-1)", 1),
        ("(null)", 0),
    ],
)
def test_gpus_in_use(gres: str, gpus: int) -> None:
    line = f"c1|mixed|1/7/0/8|300|{gres}|".encode()
    (state,) = sinfo.parse_node_states(line, Counter(), no_complaint)
    assert state.gpus_allocated == gpus


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("idle*", ["IDLE"]),
        ("down~+drain#", ["DOWN", "DRAIN"]),
        ("idle+maintenance+reserved", ["IDLE", "MAINTENANCE", "RESERVED"]),
        ("mixed+mixed", ["MIXED"]),
        ("powered_down@", ["POWERED_DOWN"]),
        ("", []),
    ],
)
def test_states_are_split_and_without_flags(states: str, expected: list[str]) -> None:
    (found,) = sinfo.parse_nodes(f"c1|{states}|\n".encode(), lambda _: None)
    assert found.states == expected


@pytest.mark.parametrize(
    "line", ["no bars", "c[|idle|", "c1|idle", "|idle|x", "c1|st%te|", "*|c1|"]
)
def test_bad_lines_cost_only_themselves(line: str) -> None:
    complaints: list[str] = []
    content = f"a1|idle|\n{line}\nb1|idle|\n".encode()
    names = [one.names for one in sinfo.parse_nodes(content, complaints.append)]
    assert names[0] == ["a1"]
    assert names[-1] == ["b1"]


@given(st.binary())
def test_whatever_sinfo_prints_the_result_fits_the_schema(content: bytes) -> None:
    content = b"a1|idle|\n" + content
    envelope = {
        "meta": {"producer": "x", "version": "1.0.0"},
        "data": {
            "type": "cluster",
            "attributes": {
                "time": "2026-01-01T00:00:00Z",
                "cluster": "fox",
                "slurm": True,
                "partitions": sinfo.parse_partitions(content, lambda _: None),
                "nodes": sinfo.parse_nodes(content, lambda _: None),
            },
        },
    }
    validate("ClusterEnvelope", msgspec.json.encode(envelope))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def make(script: str) -> str:
        path = tmp_path / "sinfo"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def sampled(path: str) -> ClusterEnvelope:
    agent = ClusterAgent(ClusterSettings(sinfo=path), frozenset({"sonar"}))
    (envelope,) = agent.sample(Node(hostname="master", cluster="fox"))
    assert isinstance(envelope, ClusterEnvelope)
    validate("ClusterEnvelope", msgspec.json.encode(envelope))
    return envelope


def test_the_agent_asks_twice(program: Callable[[str], str]) -> None:
    path = program('case "$*" in *Complete*) echo "c1|idle|";; *) echo "normal*|c1|";; esac')
    envelope = sampled(path)
    assert envelope.data is not None
    attributes = envelope.data.attributes
    assert attributes.slurm
    assert [one.name for one in attributes.partitions] == ["normal"]
    assert [one.states for one in attributes.nodes] == [["IDLE"]]


def test_an_empty_cluster_is_one(program: Callable[[str], str]) -> None:
    envelope = sampled(program("true"))
    assert envelope.data is not None
    assert (envelope.data.attributes.slurm, envelope.data.attributes.nodes) == (False, [])


def test_an_answer_without_any_line_of_nodes_is_a_failure(program: Callable[[str], str]) -> None:
    envelope = sampled(program("echo maintenance until noon"))
    assert envelope.data is None
    assert envelope.errors[0].detail == "sinfo: no line has two fields: 'maintenance until noon'"


def test_without_slurm_there_is_a_sentence(program: Callable[[str], str]) -> None:
    assert "Slurm is not installed on this node" in sampled("/nowhere/sinfo").errors[0].detail
    away = program("echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in sampled(away).errors[0].detail


def test_the_states_of_nodes_are_an_event(program: Callable[[str], str]) -> None:
    lines = (
        "c1|mixed|6/2/0/8|300|gpu:a100:1(IDX:0),gpu:h100:2(IDX:1-2)|",
        "c1|mixed|6/2/0/8|300|gpu:a100:1(IDX:0),gpu:h100:2(IDX:1-2)|",
        "c2|down+not_responding|0/0/8/8|N/A|(null)|",
        "odd",
        "c3|mixed|99999999999999999999/0/8/8|0||",
        "c4|mixed|0/0/8/8|0|gpu:99999999999999999999|",
    )
    printed = " ".join(f"'{text}'" for text in lines)
    path = program(f"case \"$*\" in *Node*) printf '%s\\n' {printed};; esac")
    settings = ClusterSettings(sinfo=path, squeue="true")
    node = Node(hostname="master", cluster="fox")
    agent = ClusterAgent(settings, frozenset({"line"}))
    (message,) = encode(agent.sample(node), ["line"], node)
    assert message.kind == "events.slurm"
    start, _, rest = message.body.decode().partition(' event="')
    assert start == "nodestate,hostname=master,type=node"
    payload = json.loads(rest.rpartition('" ')[0].replace('\\"', '"'))
    assert payload == {
        "cluster": "fox",
        "nodes": [
            {"hostname": "c1", "states": ["mixed"], "cpusAllocated": 6, "memoryAllocated": 300,
             "gpusAllocated": 3, "jobsRunning": 0},
            {"hostname": "c2", "states": ["down"], "cpusAllocated": 0, "memoryAllocated": 0,
             "gpusAllocated": 0, "jobsRunning": 0},
        ],
    }  # fmt: skip


def test_running_jobs_are_counted_by_node() -> None:
    counts = sinfo.running_jobs(b"c[1-2]\nc2\n\nc[\n")
    assert counts == {"c1": 1, "c2": 2}


def test_nodes_of_one_host_stay_apart(program: Callable[[str], str]) -> None:
    # As where several slurmds run on a machine: NodeHost is that of the machine.
    path = program(
        'case "$*" in *NodeHost*) echo "vm|idle|0/8/0/8|0||"; echo "vm|idle|0/8/0/8|0||";; '
        '*NodeList:*CPUsState*) echo "c1|idle|0/8/0/8|0||"; echo "c2|idle|0/8/0/8|0||";; esac'
    )
    node = Node(hostname="master", cluster="fox")
    agent = ClusterAgent(ClusterSettings(sinfo=path, squeue="true"), frozenset({"line"}))
    (message,) = encode(agent.sample(node), ["line"], node)
    assert rb"\"hostname\":\"c1\"" in message.body
    assert rb"\"hostname\":\"c2\"" in message.body
