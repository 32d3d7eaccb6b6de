"""Splitting: every part fits, is complete in itself, and together they hold what was not lost."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.machine.node import Node
from ccagent.machine.procfs.process_files import command_text
from ccagent.records.encoding import encode
from ccagent.records.envelopes import (
    ClusterAttributes,
    ClusterData,
    ClusterEnvelope,
    ClusterNodes,
    ClusterPartition,
    JobsAttributes,
    JobsData,
    JobsEnvelope,
    SampleAttributes,
    SampleData,
    SampleDisk,
    SampleEnvelope,
    SampleJob,
    SampleJobCgroup,
    SampleJobEnergy,
    SampleProcess,
    SampleSystem,
    SlurmJob,
    SysinfoAttributes,
    SysinfoData,
    SysinfoEnvelope,
    SysinfoSoftwareVersion,
)
from ccagent.records.json_encoding import ErrorObject, JsonArray, MetadataObject
from ccagent.records.message import Format, Message, Record
from ccagent.records.points import Point
from ccagent.records.splitting import halve_message, split_message
from tests.support.schema import validate

META = MetadataObject(producer="ccagent", version="1.0.0")
NOW = "2026-01-31T12:00:00Z"
NODE = Node(hostname="c1-1", cluster="fox")
HOSTILE = st.one_of(
    st.text(max_size=15),
    st.sampled_from(['"\\"', "\x01\x02\x1b", "😀" * 15, "},{", '":null', "]}}", "\u2028\x7f"]),
    st.binary(max_size=15).map(lambda name: command_text(name, b"S")),
)


def sample(
    jobs: list[SampleJob],
    errors: list[ErrorObject] | None = None,
    cpus: list[int] | None = None,
    disks: list[SampleDisk] | None = None,
) -> SampleEnvelope:
    system = SampleSystem(boot=NOW, cpus=cpus or [], disks=disks or [], used_memory=7, load1=0.5)
    attributes = SampleAttributes(
        time=NOW, cluster="fox", node="c1-1", system=system, jobs=jobs, errors=errors or []
    )
    return SampleEnvelope(meta=META, data=SampleData(type="sample", attributes=attributes))


def job(number: int, names: list[str], user: str = "ada") -> SampleJob:
    processes = [
        SampleProcess(
            cmd=name, pid=number * 10_000 + index, ppid=1, cpu_avg=0.5, cpu_time=index, data_read=7
        )
        for index, name in enumerate(names, 1)
    ]
    return SampleJob(job=number, user=user, epoch=0, processes=processes)


def message_of(*records: Record) -> Message:
    form: Format = "line" if isinstance(records[0], Point) else "sonar"
    (message,) = encode(records, form, NODE)
    return msgspec.structs.replace(message, id="ab12")


def attributes_of(parts: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(part.body)["data"]["attributes"] for part in parts]


def processes_of(parts: list[Message]) -> list[tuple[Any, ...]]:
    return [
        (each["job"], each["user"], each["epoch"], process["pid"], process.get("cmd"))
        for attributes in attributes_of(parts)
        for each in attributes.get("jobs", [])
        for process in each["processes"]
    ]


def test_a_message_that_fits_is_its_only_part() -> None:
    message = message_of(sample([job(1, ["a"])]))
    assert split_message(message, len(message.body)) == [message]


def test_a_sample_of_6500_processes_with_control_bytes_passes_one_mebibyte() -> None:
    # Each byte takes six in JSON: a user needs no more than the limit on processes allows.
    message = message_of(
        sample([job(1000 + n, ["\x01" * 15] * 10) for n in range(650)], cpus=[1] * 9)
    )
    assert len(message.body) > 2**20
    first, second = split_message(message, 2**20)
    assert max(len(first.body), len(second.body)) <= 2**20
    assert processes_of([first, second]) == processes_of([message])
    assert "errors" not in attributes_of([first])[0]


def test_every_part_of_a_sample_is_a_sample_of_the_same_node_and_time() -> None:
    message = message_of(sample([job(n, ["a", "b"]) for n in range(50)], cpus=[1, 2]))
    parts = split_message(message, 1000)
    assert len(parts) > 2
    for part in parts:
        validate("SampleEnvelope", part.body)
        assert json.loads(part.body)["meta"] == {"producer": "ccagent", "version": "1.0.0"}
        assert (part.kind, part.cluster, part.node) == ("sample", "fox", "c1-1")
        assert part.time == message.time
    systems = [attributes["system"] for attributes in attributes_of(parts)]
    assert systems == [{"boot": NOW, "cpus": [1, 2], "used_memory": 7, "load1": 0.5}] * len(parts)


def test_equal_messages_have_equal_parts_with_ids_of_their_own() -> None:
    message = message_of(sample([job(n, ["a", "b"]) for n in range(50)]))
    parts = split_message(message, 1000)
    assert parts == split_message(message, 1000)
    assert [part.id for part in parts] == [f"ab12-{n}" for n in range(1, len(parts) + 1)]


def test_a_large_job_is_split_by_its_processes() -> None:
    large = msgspec.structs.replace(
        job(2, ["x"] * 100),
        cgroup=SampleJobCgroup(used_memory=4, oom_kills=1),
        energy=SampleJobEnergy(active=7),
    )
    message = message_of(sample([job(1, ["a"]), large, job(3, ["c"])]))
    parts = split_message(message, 1200)
    assert processes_of(parts) == processes_of([message])
    told = [each for part in attributes_of(parts) for each in part["jobs"] if "cgroup" in each]
    assert [each["cgroup"] for each in told] == [{"used_memory": 4, "oom_kills": 1}]
    assert [each["energy"] for each in told] == [{"active": 7}]
    jobs = [each for part in attributes_of(parts) for each in part["jobs"]]
    assert sum("energy" in each for each in jobs) == 1


def test_a_system_too_large_to_be_repeated_has_its_lists_once() -> None:
    message = message_of(sample([job(n, ["a"]) for n in range(50)], cpus=[9] * 400))
    parts = split_message(message, 1500)
    first, *others = attributes_of(parts)
    assert first["system"]["cpus"] == [9] * 400
    assert len(others) > 1
    for attributes in others:
        assert attributes["system"] == {"boot": NOW, "used_memory": 7, "load1": 0.5}
    assert processes_of(parts) == processes_of([message])


def test_lists_that_fit_in_no_part_are_lost_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    disks = [SampleDisk(name=f"sd{n}", major=8, minor=n, stats=[1] * 20) for n in range(30)]
    message = message_of(sample([job(1, ["a"])], cpus=[1, 2], disks=disks))
    with caplog.at_level(logging.ERROR, "ccagent"):
        (part,) = split_message(message, 1000)
    (attributes,) = attributes_of([part])
    assert attributes["system"]["cpus"] == [1, 2]
    assert "disks" not in attributes["system"]
    (error,) = attributes["errors"]
    assert (error["time"], error["node"]) == (NOW, "c1-1")
    assert "disks of the system" in error["detail"]
    assert "disks of the system" in caplog.text


def test_a_process_larger_than_the_limit_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    message = message_of(sample([job(1, ["a", "x" * 5000, "b"]), job(2, ["c"])]))
    with caplog.at_level(logging.ERROR, "ccagent"):
        parts = split_message(message, 1000)
    assert [process[4] for process in processes_of(parts)] == ["a", "b", "c"]
    assert "process of job 1: '10002'" in caplog.text
    assert "the receiver takes at most 1000 bytes; left out: process" in caplog.text
    assert "process of job 1" in attributes_of(parts)[0]["errors"][0]["detail"]


@given(
    jobs=st.lists(st.tuples(st.lists(HOSTILE, max_size=30), HOSTILE), max_size=8),
    errors=st.lists(HOSTILE, max_size=4),
    cpus=st.integers(0, 100),
    limit=st.integers(1, 6000),
)
def test_parts_of_a_sample_fit_and_hold_all_that_is_not_lost(
    jobs: list[tuple[list[str], str]], errors: list[str], cpus: int, limit: int
) -> None:
    message = message_of(
        sample(
            [job(n, names, f"u{user}") for n, (names, user) in enumerate(jobs)],
            [ErrorObject(time=NOW, detail=f"e{text}") for text in errors],
            [2**40] * cpus,
        )
    )
    parts = split_message(message, limit)
    assert all(len(part.body) <= limit for part in parts)
    for part in parts:
        if part is not message:
            validate("SampleEnvelope", part.body)
    processes, wanted = processes_of(parts), processes_of([message])
    if limit >= 1000 and cpus == 0:
        assert processes == wanted
    assert len(set(processes)) == len(processes)
    lost = len(wanted) - len(processes)
    assert [process for process in wanted if process in set(processes)] == processes
    if parts and not lost and limit >= 1500:
        told = [e["detail"] for a in attributes_of(parts) for e in a.get("errors", [])]
        assert [text for text in told if text.startswith("e")] == [f"e{text}" for text in errors]


@given(
    names=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), max_size=60),
    limit=st.integers(1, 3000),
)
def test_lines_are_split_between_lines(names: list[str], limit: int) -> None:
    lines = [
        Point("load", {"name": name}, n, 1.0)
        for n, name in enumerate(names)
        if name.isprintable() and not name.endswith("\\")
    ]
    if not lines:
        return
    message = message_of(*lines)
    parts = split_message(message, limit)
    assert all(len(part.body) <= limit for part in parts)
    fitting = [line for line in message.body.splitlines(keepends=True) if len(line) <= limit]
    assert b"".join(part.body for part in parts) == b"".join(fitting)
    assert all(part.body.endswith(b"\n") for part in parts)


def test_a_line_larger_than_the_limit_is_named(caplog: pytest.LogCaptureFixture) -> None:
    message = message_of(Point("load", {"a": "b"}, 1, 1.0), Point("large", {"a": "b" * 90}, 1, 1.0))
    with caplog.at_level(logging.ERROR, "ccagent"):
        (part,) = split_message(message, 80)
    assert part.body == b"load,a=b value=1i 1\n"
    assert part.id == "ab12-1"
    assert "line 'large,a=bbb" in caplog.text


@given(
    items=st.lists(
        st.dictionaries(HOSTILE, st.one_of(HOSTILE, st.integers(0, 2**63), st.none()), max_size=4),
        max_size=40,
    ),
    limit=st.integers(1, 2000),
)
def test_arrays_are_split_between_elements(items: list[dict[str, Any]], limit: int) -> None:
    message = message_of(JsonArray("lustre.jobstats", items))
    parts = split_message(message, limit)
    assert all(len(part.body) <= limit for part in parts)
    read = [item for part in parts for item in json.loads(part.body)]
    assert read == [item for item in items if len(msgspec.json.encode(item)) + 2 <= limit]


def test_jobs_are_spread_over_envelopes(caplog: pytest.LogCaptureFixture) -> None:
    jobs = [SlurmJob(job_id=n, job_state="RUNNING", job_name="j" * n) for n in range(1, 60)]
    jobs.append(SlurmJob(job_id=999, job_state="RUNNING", job_step="batch", job_name="n" * 2000))
    envelope = JobsEnvelope(
        meta=META,
        data=JobsData(
            type="job", attributes=JobsAttributes(time=NOW, cluster="fox", slurm_jobs=jobs)
        ),
    )
    with caplog.at_level(logging.ERROR, "ccagent"):
        parts = split_message(message_of(envelope), 1000)
    for part in parts:
        assert len(part.body) <= 1000
        validate("JobsEnvelope", part.body)
    told = [each["job_id"] for part in attributes_of(parts) for each in part["slurm_jobs"]]
    assert told == list(range(1, 60))
    assert "'999'" in caplog.text
    assert "batch" in caplog.text


def test_partitions_and_nodes_are_spread_over_envelopes() -> None:
    attributes = ClusterAttributes(
        time=NOW,
        cluster="fox",
        slurm=True,
        partitions=[ClusterPartition(name=f"p{n}", nodes=["c[1-9]"]) for n in range(20)],
        nodes=[ClusterNodes(names=[f"c{n}"], states=["IDLE"]) for n in range(100)],
    )
    envelope = ClusterEnvelope(meta=META, data=ClusterData(type="cluster", attributes=attributes))
    parts = split_message(message_of(envelope), 700)
    for part in parts:
        assert len(part.body) <= 700
        validate("ClusterEnvelope", part.body)
    told = attributes_of(parts)
    assert [p["name"] for part in told for p in part["partitions"]] == [f"p{n}" for n in range(20)]
    assert [n["names"] for part in told for n in part["nodes"]] == [[f"c{n}"] for n in range(100)]


def test_sysinfo_stays_one_envelope_without_its_drawings(caplog: pytest.LogCaptureFixture) -> None:
    attributes = SysinfoAttributes(
        time=NOW, cluster="fox", node="c1-1", os_name="Linux", os_release="6", architecture="x",
        sockets=1, cores_per_socket=2, threads_per_core=1, memory=3, cpu_model="y", numa_nodes=1,
        topo_svg="PHN2Zz4=" * 500,
        software=[SysinfoSoftwareVersion(key="a", version="1")],
    )  # fmt: skip
    envelope = SysinfoEnvelope(meta=META, data=SysinfoData(type="sysinfo", attributes=attributes))
    with caplog.at_level(logging.ERROR, "ccagent"):
        (part,) = split_message(message_of(envelope), 1000)
    (told,) = attributes_of([part])
    assert "topo_svg" not in told
    assert told["software"] == [{"key": "a", "version": "1"}]
    validate("SysinfoEnvelope", part.body)
    assert "topo_svg" in caplog.text


def test_envelopes_with_errors_alone_are_split_by_errors() -> None:
    errors = [ErrorObject(time=NOW, detail=f"error {n}") for n in range(40)]
    message = message_of(SampleEnvelope(meta=META, errors=errors))
    parts = split_message(message, 500)
    for part in parts:
        assert len(part.body) <= 500
        validate("SampleEnvelope", part.body)
    told = [error["detail"] for part in parts for error in json.loads(part.body)["errors"]]
    assert told == [f"error {n}" for n in range(40)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1,2",
        b'{"data":7}',
        b'{"data":{"type":"x","attributes":{}}}',
        b"\xff",
        b"[" * 99,
    ],
)
def test_what_cannot_be_split_has_no_parts(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    message = Message("fox", "c1-1", "sample", "sonar", 0.0, body + b" " * 200, "", "ab12")
    with caplog.at_level(logging.ERROR, "ccagent"):
        assert split_message(message, 100) == []
    assert "left out: all of it" in caplog.text


def test_splitting_a_mebibyte_costs_little() -> None:
    message = message_of(sample([job(1000 + n, ["\x01" * 15] * 10) for n in range(650)]))
    begin = time.thread_time()
    assert len(split_message(message, 2**18)) > 3
    # Measured: 5 ms. The bound is for machines under load.
    assert time.thread_time() - begin < 0.05


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(-5, 2**64) | HOSTILE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=8,
)
JOBS: st.SearchStrategy[Any] = st.lists(
    st.fixed_dictionaries({}, optional={"job": VALUES, "processes": VALUES, "user": HOSTILE}),
    max_size=3,
)
ATTRIBUTES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "time": VALUES, "jobs": JOBS | VALUES, "errors": VALUES, "system": VALUES,
        "slurm_jobs": VALUES, "nodes": VALUES, "partitions": VALUES, "cards": VALUES,
    },
)  # fmt: skip
DATA: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["sample", "job", "cluster", "sysinfo"]) | VALUES,
        "attributes": ATTRIBUTES | VALUES,
    },
)
ENVELOPES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"data": DATA | VALUES, "errors": VALUES}
)


@given(
    body=st.binary(max_size=300) | (ENVELOPES | VALUES).map(msgspec.json.encode),
    limit=st.integers(0, 200),
)
def test_no_body_makes_it_raise(body: bytes, limit: int) -> None:
    forms: tuple[Format, ...] = ("sonar", "line")
    for form in forms:
        message = Message("fox", "c1-1", "sample", form, 0.0, body, "", "ab12")
        assert all(len(part.body) <= limit for part in split_message(message, limit))


@pytest.mark.parametrize(
    "record",
    [
        sample([job(n, ["a"]) for n in range(1, 6)]),
        JsonArray("jobstats", [{"a": n} for n in range(5)]),
    ],
)
def test_halves_hold_what_the_message_holds(record: Record) -> None:
    whole = message_of(record)
    first, second = halve_message(whole)
    assert [first.id, second.id] == [f"{whole.id}-1", f"{whole.id}-2"]
    assert len(records_of(first)) == 2
    assert records_of(first) + records_of(second) == records_of(whole)


def test_lines_are_halved_between_lines() -> None:
    whole = Message("fox", "c1-1", "metrics", "line", 0.0, b"a value=1 7\nb value=1 7\nc v=1 7\n")
    bodies = [half.body for half in halve_message(whole)]
    assert bodies == [b"a value=1 7\n", b"b value=1 7\nc v=1 7\n"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"errors":[1,2]}', b'{"data":{"type":"sysinfo"}}', b"[" * 9999]
)
def test_what_can_not_be_halved_stays_whole(body: bytes) -> None:
    assert halve_message(Message("fox", "c1-1", "job", "sonar", 0.0, body)) == []


def test_errors_of_a_sample_are_in_its_first_half() -> None:
    error = ErrorObject(time=NOW, detail="x")
    halves = halve_message(message_of(sample([job(1, ["a"]), job(2, ["b"])], errors=[error])))
    assert [b'"errors"' in half.body for half in halves] == [True, False]


def records_of(message: Message) -> list[Any]:
    value: Any = json.loads(message.body)
    found: list[Any] = (
        value if message.body.startswith(b"[") else value["data"]["attributes"]["jobs"]
    )
    return found
