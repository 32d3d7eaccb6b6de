"""What is left out for the receiver that a sink names, and which settings contradict one."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from ccagent.config.configuration import check, check_sink
from ccagent.config.warnings import find_warnings
from ccagent.machine.node import Node
from ccagent.records.encoding import Profile, encode, encode_each
from ccagent.records.envelopes import (
    ClusterEnvelope,
    JobsAttributes,
    JobsData,
    JobsEnvelope,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleGpu,
    SampleJob,
    SampleJobCgroup,
    SampleJobEnergy,
    SampleSystem,
    SlurmJob,
    SysinfoAttributes,
    SysinfoData,
    SysinfoEnvelope,
    SysinfoSoftwareVersion,
)
from ccagent.records.json_encoding import Envelope, ErrorObject, JsonArray, KVPair, MetadataObject
from ccagent.records.message import Message, Record
from ccagent.records.points import Event, LogMessage, Point
from ccagent.records.receivers import RECEIVERS, _plan_of_envelope
from ccagent.transports.base import SinkSettings, build_transport
from ccagent.transports.http import HttpSettings
from tests.support.receiver_schemas import SCHEMAS, find_refused
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


def fit(record: Record, sink: SinkSettings) -> Message | None:
    """Return the message that a sink gets."""
    return next(iter(encode([record], sink.profile, NODE)), None)


def filled(kind: object) -> Any:
    """Return a value of a type in which every field, at any depth, has a value of its own."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: filled(field.type) for field in msgspec.structs.fields(kind)}
        return kind(**fields)
    origin = typing.get_origin(kind)
    if origin is list:
        return [filled(each) for each in typing.get_args(kind)]
    if origin is not None:
        return filled(typing.get_args(kind)[0])
    return {str: "x", int: 7, float: 0.5, bool: True}[kind]  # type: ignore[index]


def with_all_fields(envelope: type[Envelope]) -> Envelope:
    """Return an envelope with data, and with every optional field."""
    whole: Envelope = filled(envelope)
    assert whole.data is not None
    data = replace(whole.data, type=envelope.kind)
    return replace(whole, data=data, errors=[])


ENVELOPES = (SampleEnvelope, SysinfoEnvelope, JobsEnvelope, ClusterEnvelope)


@pytest.mark.parametrize("receiver", [*SCHEMAS])
@pytest.mark.parametrize("envelope", ENVELOPES)
def test_receivers_know_all_that_they_get(envelope: type[Envelope], receiver: str) -> None:
    sink = SinkSettings(url="kafka://k", receiver=receiver)  # type: ignore[arg-type]
    fitted = fit(with_all_fields(envelope), sink)
    assert fitted is not None
    assert find_refused(json.loads(fitted.body), SCHEMAS[receiver]) == []


@pytest.mark.parametrize("receiver", [*SCHEMAS])
@pytest.mark.parametrize("envelope", ENVELOPES)
def test_receivers_get_all_that_they_know(envelope: type[Envelope], receiver: str) -> None:
    whole: dict[str, Any] = json.loads(msgspec.json.encode(with_all_fields(envelope)))
    schema = SCHEMAS[receiver]
    refused = {text.rpartition(" ")[2] for text in find_refused(whole, schema)}
    sink = SinkSettings(url="kafka://k", receiver=receiver)  # type: ignore[arg-type]
    fitted = fit(with_all_fields(envelope), sink)
    assert fitted is not None
    ignored = {"energy"}  # slurm-monitor ignores it
    assert fields(json.loads(fitted.body)) == fields(without(whole, refused | ignored))


def _ignore(*_: object) -> None:
    """Take a complaint."""


def without(value: Any, names: set[str]) -> Any:
    """Return JSON without the fields of some names."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: without(held, names) for key, held in items if key not in names}
    if isinstance(value, list):
        elements = msgspec.convert(value, list[Any])
        return [without(each, names) for each in elements]
    return value


def fields(value: Any, path: str = "") -> set[str]:
    """Return the paths of all fields in JSON."""
    if isinstance(value, list):
        elements = msgspec.convert(value, list[Any])
        return {found for each in elements for found in fields(each, path)}
    if not isinstance(value, dict):
        return set()
    return {
        found
        for key, held in cast("dict[str, Any]", value).items()
        for found in ({f"{path}.{key}"} | fields(held, f"{path}.{key}"))
    }


@pytest.mark.parametrize("receiver", [*SCHEMAS])
def test_a_new_field_of_a_process_goes_to_no_receiver(
    receiver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = RECEIVERS[receiver]
    path = "sample.jobs.processes"
    older = {path: known.fields[path].replace(" data_cancelled", "")}
    monkeypatch.setitem(RECEIVERS, receiver, replace(known, fields=known.fields | older))
    _plan_of_envelope.cache_clear()
    sink = SinkSettings(url="kafka://k", receiver=receiver)  # type: ignore[arg-type]
    fitted = fit(with_all_fields(SampleEnvelope), sink)
    _plan_of_envelope.cache_clear()
    assert fitted is not None
    assert b"data_cancelled" not in fitted.body
    assert b"data_written" in fitted.body


@pytest.mark.parametrize("record", [sample(), sysinfo()])
def test_slurm_monitor_imports_what_it_refuses_otherwise(record: Record) -> None:
    (whole,) = encode([record], "sonar", NODE)
    with pytest.raises(RefusedError):
        import_as_slurm_monitor(whole.body)
    fitted = fit(record, SinkSettings(url="kafka://k", receiver="slurm-monitor"))
    assert fitted is not None
    import_as_slurm_monitor(fitted.body)


def test_nothing_else_changes_in_an_envelope() -> None:
    (whole,) = encode([sample()], "sonar", NODE)
    fitted = fit(sample(), SinkSettings(url="kafka://k", receiver="jobanalyzer"))
    assert fitted is not None
    expected: dict[str, Any] = json.loads(whole.body)
    for name in ("cgroup", "energy"):
        del expected["data"]["attributes"]["jobs"][0][name]
    assert json.loads(fitted.body) == expected


def test_an_envelope_that_is_fine_is_encoded_once() -> None:
    attributes = SampleAttributes(
        time=NOW, cluster="fox", node="c1-1", system=SampleSystem(boot=NOW)
    )
    plain = SampleEnvelope(
        meta=MetadataObject(producer="ccagent", version="1.0.0"),
        data=SampleData(type="sample", attributes=attributes),
    )
    sinks = [
        check_sink({"url": "stdout:", "receiver": receiver}, "x", "t")
        for receiver in ("", "jobanalyzer", "slurm-monitor")
    ]
    messages = [*encode_each([plain], [sink.profile for sink in sinks], NODE)]
    assert [profile.receiver for profile, _ in messages] == ["", "jobanalyzer", "slurm-monitor"]
    assert len({id(message.body) for _, message in messages}) == 1
    assert len({message.id for _, message in messages}) == 3


def test_jobs_without_times_have_empty_times_for_jobanalyzer() -> None:
    pending = SlurmJob(job_id=1, job_state="PENDING", submit_time=NOW)
    damaged = SlurmJob(job_id=2**70, job_state="FAILED")
    attributes = JobsAttributes(time=NOW, cluster="fox", slurm_jobs=[pending, damaged])
    envelope = JobsEnvelope(meta=META, data=JobsData(type="job", attributes=attributes))
    sinks = {
        receiver: SinkSettings(url="kafka://k", receiver=receiver)
        for receiver in ("jobanalyzer", "slurm-monitor")
    }
    times: dict[str, Any] = {}
    for receiver, sink in sinks.items():
        made = encode_each([envelope], [sink.profile], NODE, complain=_ignore)
        ((_, message),) = made
        (job,) = json.loads(message.body)["data"]["attributes"]["slurm_jobs"]
        times[receiver] = {key: value for key, value in job.items() if key.endswith("_time")}
    assert times == {
        "jobanalyzer": {"submit_time": NOW, "start_time": "", "end_time": ""},
        "slurm-monitor": {"submit_time": NOW},
    }


def test_what_is_wrong_with_a_record_is_reported_once() -> None:
    system = SampleSystem(boot=NOW, load1=float("nan"))
    data = replace(sample().data.attributes, system=system)  # type: ignore[union-attr]
    record = replace(sample(), data=SampleData(type="sample", attributes=data))
    profiles = [SinkSettings(url="kafka://k").profile, Profile(receiver="jobanalyzer")]
    reasons: list[str] = []
    messages = encode_each([record], profiles, NODE, complain=lambda _, e: reasons.append(str(e)))
    assert len([*messages]) == 2
    assert reasons == ["load1: nan is not a number in JSON"]


@pytest.mark.parametrize("kind", ["jobstats", "sample"])
def test_arrays_are_not_sent_to_readers_of_envelopes(kind: str) -> None:
    array = JsonArray(kind, [{"a": 1}])
    assert fit(array, SinkSettings(url="kafka://k")) is not None
    assert fit(array, SinkSettings(url="kafka://k", receiver="jobanalyzer")) is None


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
    tags = {"hostname": "c1-1", "type": "node"}
    records: dict[str, Record] = {
        "metrics": Point("x", tags, 1, 7.0),
        "events.job": Event("job", "job", tags, Payload(1), 7.0),
        "log.ccagent": LogMessage("ccagent", tags, "x", 7.0),
    }
    table = {"url": "nats://n", "format": "line", "receiver": receiver}
    fitted = fit(records[kind], check_sink(table, "x", "t"))
    assert (fitted is not None) == is_sent
    assert fitted is None or fitted.kind == kind


class Payload(msgspec.Struct):
    """The payload of an event."""

    id: int


def test_only_jobs_of_a_node_are_left_out_of_lines() -> None:
    job = {"stype": "job", "stype-id": "1"}
    kept: list[Record] = [
        Point("a", {"type": "node"}, 1, 7.0),
        Point("c", {"type": "hwthread", "type-id": "0"} | job, 1, 7.0),
        Point("d", {"hostname": "a ,stype=x", "type": "node"}, 1, 7.0),
    ]
    sink = SinkSettings(url="nats://n", format="line", receiver="cc-metric-store")
    records = [*kept, Point("b", {"type": "node"} | job, 1, 7.0)]
    (fitted,) = encode(records, sink.profile, NODE)
    (expected,) = encode(kept, "line", NODE)
    assert fitted.body == expected.body


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
    assert (fit(ERRORS_ALONE, sink) is not None) == is_sent
    assert ("sacct: not found" in caplog.text) != is_sent


def test_errors_beside_data_are_sent_over_http() -> None:
    fitted = fit(sample(), HttpSettings(url="http://h"))
    assert fitted is not None
    assert b"sacct: not found" in fitted.body


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
    ("receivers", "preset", "warnings"),
    [
        (["jobanalyzer"], "", 0),
        (["jobanalyzer", "slurm-monitor"], "", 0),
        (["jobanalyzer", "slurm-monitor"], "jobanalyzer", 1),
        (["jobanalyzer"], "jobanalyzer", 0),
    ],
)
def test_a_preset_for_all_sinks_is_a_warning(
    receivers: list[str], preset: str, warnings: int
) -> None:
    sinks: dict[str, Any] = {
        f"s{number}": {"url": "kafka://k", "receiver": receiver}
        for number, receiver in enumerate(receivers)
    }
    sinks["points"] = {"url": "nats://n", "format": "line"}
    table = {"agents": {"sample": {"every": "1m", "preset": preset}}, "sinks": sinks}
    configuration = check(table, "ccagent.toml")
    assert configuration.receivers_of("sample") == {*receivers}
    found = [*find_warnings(configuration)]
    assert len(found) == warnings
    assert all(text.startswith("agents.sample.preset, sinks.s1.receiver") for text in found)
