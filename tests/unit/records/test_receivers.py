"""What is left out for the receiver that a sink names, and which settings contradict one."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.sonar.settings import SampleSettings
from ccagent.config.configuration import build_transport, check, check_sink
from ccagent.config.warnings import find_warnings
from ccagent.machine.node import Node
from ccagent.records.envelopes import (
    ErrorObject,
    JobsEnvelope,
    KVPair,
    MetadataObject,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleGpu,
    SampleJob,
    SampleJobCgroup,
    SampleJobEnergy,
    SampleSystem,
    SysinfoAttributes,
    SysinfoData,
    SysinfoEnvelope,
    SysinfoSoftwareVersion,
)
from ccagent.records.json_array import JsonArray
from ccagent.records.message import Message, Record, encode
from ccagent.records.receivers import RECEIVERS
from ccagent.transports.base import SinkSettings
from ccagent.transports.http.settings import HttpSettings
from tests.support.receiving_programs import RefusedError, import_as_slurm_monitor

NOW = "2026-01-31T12:00:00Z"
NODE = Node(hostname="c1-1", cluster="fox")
META = MetadataObject(
    producer="ccagent", version="1.0.0", format=0, attrs=[KVPair(key="a", value="")], token="t"
)
ERROR = ErrorObject(time=NOW, detail="sacct: not found")


def sample() -> SampleEnvelope:
    system = SampleSystem(boot=NOW, gpus=[SampleGpu(index=0, uuid="GPU-1", power=3)], load1=0.5)
    job = SampleJob(
        job=1,
        user="",
        epoch=0,
        processes=[],
        cgroup=SampleJobCgroup(used_memory=2**64 - 1),
        energy=SampleJobEnergy(active=3),
    )
    attributes = SampleAttributes(
        time=NOW, cluster="fox", node="c1-1", system=system, jobs=[job], errors=[ERROR]
    )
    return SampleEnvelope(meta=META, data=SampleData(type="sample", attributes=attributes))


def sysinfo() -> SysinfoEnvelope:
    attributes = SysinfoAttributes(
        time=NOW,
        cluster="fox",
        node="c1-1",
        os_name="Linux",
        os_release="6.1",
        architecture="",
        sockets=1,
        cores_per_socket=2,
        threads_per_core=1,
        memory=1,
        cpu_model="x",
        numa_nodes=1,
        software=[SysinfoSoftwareVersion(key="cuda", version="12")],
    )
    return SysinfoEnvelope(meta=META, data=SysinfoData(type="sysinfo", attributes=attributes))


def message(record: Record) -> Message:
    (made,) = encode([record], "sonar", NODE)
    return made


@pytest.mark.parametrize("record", [sample(), sysinfo()])
def test_slurm_monitor_imports_what_it_refuses_otherwise(record: Record) -> None:
    whole = message(record)
    with pytest.raises(RefusedError):
        import_as_slurm_monitor(whole.body)
    fitted = SinkSettings(url="kafka://k", receiver="slurm-monitor").fit(whole)
    assert fitted is not None
    assert fitted.id == whole.id
    import_as_slurm_monitor(fitted.body)


def test_nothing_else_changes_in_an_envelope() -> None:
    whole = message(sample())
    fitted = SinkSettings(url="kafka://k", receiver="jobanalyzer").fit(whole)
    assert fitted is not None
    expected: dict[str, Any] = json.loads(whole.body)
    for name in ("cgroup", "energy"):
        del expected["data"]["attributes"]["jobs"][0][name]
    assert json.loads(fitted.body) == expected


def test_an_envelope_that_is_fine_is_not_encoded_again() -> None:
    attributes = SampleAttributes(
        time=NOW, cluster="fox", node="c1-1", system=SampleSystem(boot=NOW)
    )
    plain = SampleEnvelope(
        meta=MetadataObject(producer="ccagent", version="1.0.0"),
        data=SampleData(type="sample", attributes=attributes),
    )
    whole = message(plain)
    for receiver in ("jobanalyzer", "slurm-monitor"):
        assert check_sink({"url": "stdout:", "receiver": receiver}, "x", "t").fit(whole) is whole


@pytest.mark.parametrize("kind", ["jobstats", "sample"])
def test_arrays_are_not_sent_to_readers_of_envelopes(kind: str) -> None:
    array = message(JsonArray(kind, [{"a": 1}]))
    assert SinkSettings(url="kafka://k").fit(array) is array
    assert SinkSettings(url="kafka://k", receiver="jobanalyzer").fit(array) is None


@pytest.mark.parametrize(
    ("kind", "receiver", "is_sent"),
    [
        ("metrics", "cc-metric-store", True),
        ("events.job", "cc-metric-store", False),
        ("events.job", "cc-backend", True),
        ("metrics", "cc-backend", True),
        ("log.ccagent", "cc-backend", False),
        ("log.ccagent", "", True),
    ],
)
def test_lines_go_to_receivers_that_decode_them(kind: str, receiver: str, *, is_sent: bool) -> None:
    line = Message("fox", "c1-1", kind, "line", 0.0, b"x,type=node value=1 7\n")
    table = {"url": "nats://n", "format": "line", "receiver": receiver}
    assert (check_sink(table, "x", "t").fit(line) is not None) == is_sent


def test_only_jobs_of_a_node_are_left_out_of_lines() -> None:
    lines = [
        b"a,hostname=h,type=node value=1 7\n",
        b"b,hostname=h,type=node,stype=job,stype-id=1 value=1 7\n",
        b"c,hostname=h,type=hwthread,type-id=0,stype=job,stype-id=1 value=1 7\n",
        rb"d,hostname=a\ \,stype\=x,type=node value=1 7" + b"\n",
        b'e,hostname=h,type=node event=",stype=x" 7\n',
    ]
    whole = Message("fox", "h", "metrics", "line", 0.0, b"".join(lines))
    sink = SinkSettings(url="nats://n", format="line", receiver="cc-metric-store")
    fitted = sink.fit(whole)
    assert fitted is not None
    assert fitted.body.splitlines(keepends=True) == [lines[0], *lines[2:]]


ERRORS_ALONE = JobsEnvelope(meta=META, errors=[ERROR])


@pytest.mark.parametrize(
    ("sink", "is_sent"),
    [
        (HttpSettings(url="http://h"), False),
        (HttpSettings(url="http://h", receiver="slurm-monitor"), False),
        (HttpSettings(url="http://h", error_envelopes="send"), True),
        (SinkSettings(url="kafka://k"), True),
        (SinkSettings(url="kafka://k", receiver="slurm-monitor"), True),
        (SinkSettings(url="kafka://k", receiver="jobanalyzer"), False),
        (SinkSettings(url="kafka://k", error_envelopes="log"), False),
    ],
)
def test_errors_without_data_are_sent_or_logged(
    sink: SinkSettings, caplog: pytest.LogCaptureFixture, *, is_sent: bool
) -> None:
    assert (sink.fit(message(ERRORS_ALONE)) is not None) == is_sent
    assert ("sacct: not found" in caplog.text) != is_sent


def test_errors_beside_data_are_sent_over_http() -> None:
    whole = message(sample())
    assert HttpSettings(url="http://h").fit(whole) is whole


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"receiver": "cc-metric-store"}, "cc-metric-store needs format = 'line'"),
        ({"receiver": "jobanalyzer", "format": "line"}, "jobanalyzer needs format = 'sonar'"),
        (
            {"receiver": "cc-metric-store", "format": "line", "precision": "ns"},
            "precision: cc-metric-store takes 's' only",
        ),
        ({"receiver": "jobanalyzer", "gzip": True}, "gzip: jobanalyzer refuses compressed"),
        ({"receiver": "sonalyze"}, "receiver"),
    ],
)
def test_keys_that_contradict_the_receiver_are_refused(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(Exception, match=expected) as caught:
        check_sink({"url": "http://h"} | keys, "backend", "ccagent.toml")
    assert "ccagent.toml: sinks.backend" in str(caught.value)


def test_each_value_of_the_key_has_a_preset() -> None:
    annotated = typing.get_type_hints(SinkSettings)["receiver"]
    assert {*typing.get_args(annotated)} - {""} == {*RECEIVERS}


@pytest.mark.parametrize(
    ("receiver", "payload", "expected"),
    [("jobanalyzer", 10_000_000, 1024 * 1024), ("jobanalyzer", 5, 5), ("", 10**7, 10**7)],
)
def test_a_body_over_http_is_as_large_as_the_receiver_takes(
    receiver: str, payload: int, expected: int
) -> None:
    table = {"url": "http://h", "receiver": receiver, "max-payload": payload}
    assert build_transport(check_sink(table, "x", "t")).largest_body == expected


def losses(outbox: dict[str, Any], agents: dict[str, Any], **sink: Any) -> list[str]:
    due = {name: {"every": "1m"} | agent for name, agent in agents.items()}
    table = {"outbox": outbox, "agents": due, "sinks": {"backend": sink}}
    return [*find_warnings(check(table, "ccagent.toml"))]


STATE: dict[str, Any] = {"jobs": {"state-file": "/var/lib/ccagent/jobs"}}


def test_a_state_file_with_a_queue_in_memory_may_lose_jobs(tmp_path: Path) -> None:
    (found,) = losses({}, STATE, url="nats://n")
    assert found.startswith("agents.jobs.state-file: outbox.directory is empty")
    (found,) = losses({"directory": str(tmp_path), "memory": True}, STATE, url="nats://n")
    assert found.startswith("agents.jobs.state-file: outbox.memory is true")
    assert losses({"directory": str(tmp_path)}, STATE, url="nats://n") == []
    assert losses({}, STATE, url=f"dir:{tmp_path}") == []
    assert losses({}, {"jobs": {}}, url="nats://n") == []


def test_an_agent_whose_messages_no_receiver_takes_is_found(tmp_path: Path) -> None:
    keys = {"url": "nats://n", "format": "line", "receiver": "cc-metric-store"}
    (found,) = losses({}, {"jobs": {}, "metrics": {}}, **keys)
    assert found.startswith("agents.jobs.sinks, sinks.backend.receiver: cc-metric-store takes no")


@pytest.mark.parametrize(
    ("receivers", "expected", "warnings"),
    [
        (["jobanalyzer"], "jobanalyzer", 0),
        (["jobanalyzer", "slurm-monitor"], "", 1),
        ([""], "", 0),
    ],
)
def test_samples_for_jobanalyzer_alone_are_made_for_it(
    receivers: list[str], expected: str, warnings: int
) -> None:
    sinks: dict[str, Any] = {
        f"s{number}": {"url": "kafka://k", "receiver": receiver}
        for number, receiver in enumerate(receivers)
    }
    sinks["points"] = {"url": "nats://n", "format": "line"}
    table = {"agents": {"sample": {"every": "1m"}}, "sinks": sinks}
    configuration = check(table, "ccagent.toml")
    settings = configuration.agents["sample"]
    assert isinstance(settings, SampleSettings)
    assert settings.preset == expected
    assert len([*find_warnings(configuration)]) == warnings
