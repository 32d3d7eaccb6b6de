"""Records of every agent as tables."""

from __future__ import annotations

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
    SampleEnvelope,
    SampleSystem,
    SlurmJob,
    SysinfoAttributes,
    SysinfoData,
    SysinfoEnvelope,
    SysinfoGpuCard,
)
from ccagent.records.json_encoding import ErrorObject, JsonArray, MetadataObject
from ccagent.records.message import Record
from ccagent.records.points import Point
from ccagent.views.record_table import format_records
from ccagent.views.terminal import Style

META = MetadataObject(producer="x", version="1")
NODE = {"cluster": "fox", "hostname": "n1", "type": "node"}


def lines(*records: Record) -> list[str]:
    return format_records(records, {"cpu_user": "percent"}, 80, Style())


def test_metrics_have_a_line_for_each_scope() -> None:
    points = [Point("cpu_user", NODE, 50.0, 1.0)] + [
        Point("cpu_user", NODE | {"type": "hwthread", "type-id": str(n)}, 20.0 * n, 1.0)
        for n in range(4)
    ]
    job = Point("job_mem_rss", NODE | {"stype": "job", "stype-id": "7"}, 0.0131234, 1.0)
    assert lines(*points, job) == [
        "n1 of fox",
        "",
        "METRIC      UNIT    OF         VALUE MIN MAX COUNT",
        "cpu_user    percent hwthread      30   0  60     4",
        "cpu_user    percent node          50",
        "job_mem_rss         job 7    0.01312",
    ]


def test_a_value_that_is_no_number_costs_itself() -> None:
    points = [
        Point("cpu_user", NODE | {"type": "hwthread", "type-id": str(n)}, value, 1.0)
        for n, value in enumerate((1.0, float("nan"), float("inf"), 3.0))
    ]
    assert lines(*points)[3].split() == ["cpu_user", "percent", "hwthread", "2", "1", "3", "2"]
    assert lines(Point("cpu_user", NODE, float("nan"), 1.0))[3].split()[-1] == "-"


def test_jobs_of_slurm() -> None:
    job = SlurmJob(
        job_id=4711, job_state="RUNNING", job_name="relax\x1b[2J", user_name="alice",
        partition="normal", nodes=["n[1-2]"], time_limit=3602, start_time="2027-01-15T08:00:00Z",
        allocated_resources="cpu=64,mem=240G,node=2,gres/gpu=4",
    )  # fmt: skip
    step = SlurmJob(job_id=4711, job_step="0", job_state="RUNNING")
    data = JobsData(
        type="job",
        attributes=JobsAttributes(
            time="2027-01-15T08:00:00Z", cluster="fox", slurm_jobs=[job, step]
        ),
    )
    found = format_records([JobsEnvelope(meta=META, data=data)], {}, 120, Style())
    assert found[0] == "fox  2027-01-15 08:00:00  1 jobs, 1 steps"
    assert found[3].split() == [
        "4711", "alice", "normal", "RUNNING", "2", "64", "4", "240G", "1:00:00", "2027-01-15",
        "08:00:00", "n[1-2]", "relax\N{REPLACEMENT CHARACTER}[2J",
    ]  # fmt: skip


def test_nodes_of_a_cluster() -> None:
    data = ClusterData(
        type="cluster",
        attributes=ClusterAttributes(
            time="2027-01-15T08:00:00Z", cluster="fox", slurm=True,
            partitions=[ClusterPartition(name="normal", nodes=["n[1-9]"])],
            nodes=[ClusterNodes(names=["n[1-8]"], states=["IDLE", "DRAIN"])],
        ),
    )  # fmt: skip
    found = lines(ClusterEnvelope(meta=META, data=data))
    assert found[2:] == [
        "STATE      NODES", "IDLE+DRAIN n[1-8]", "", "PARTITION NODES", "normal    n[1-9]",
    ]  # fmt: skip


def test_the_description_of_a_node() -> None:
    data = SysinfoData(
        type="sysinfo",
        attributes=SysinfoAttributes(
            time="", cluster="fox", node="n1", os_name="Linux", os_release="6.1",
            architecture="x86_64", sockets=2, cores_per_socket=32, threads_per_core=2,
            memory=256 << 20, cpu_model="EPYC", numa_nodes=8,
            cards=[SysinfoGpuCard(index=0, uuid="u", model="A100", manufacturer="NVIDIA",
                                  memory=80 << 20, address="0000:0E:00.0")],
        ),
    )  # fmt: skip
    found = lines(SysinfoEnvelope(meta=META, data=data))
    assert "cores    64 in 2 sockets, 128 threads" in found
    assert found[-1] == "  0 NVIDIA A100 80G 0000:0E:00.0"


def test_arrays_have_a_column_for_each_key() -> None:
    items: list[dict[str, str | int | float | bool | None]] = [
        {"job": "a", "read": 1}, {"job": "b", "write": None}
    ]  # fmt: skip
    assert lines(JsonArray(kind="lustre", items=items)) == [
        "lustre: 2 records", "", "JOB READ", "a   1", "b   -",
    ]  # fmt: skip


def test_no_text_around_a_table_controls_the_terminal() -> None:
    odd = "fox\x1b[2J\u202e"
    sample = SampleAttributes(
        time=odd, cluster=odd, node=odd, system=SampleSystem(boot=""),
        errors=[ErrorObject(time="", detail=odd), ErrorObject(time="", detail=odd)],
    )  # fmt: skip
    jobs = JobsAttributes(time=odd, cluster=odd, slurm_jobs=[])
    cluster = ClusterAttributes(time=odd, cluster=odd, slurm=True, partitions=[], nodes=[])
    records: tuple[Record, ...] = (
        SampleEnvelope(meta=META, data=SampleData(type="sample", attributes=sample)),
        JobsEnvelope(meta=META, data=JobsData(type="job", attributes=jobs)),
        ClusterEnvelope(meta=META, data=ClusterData(type="cluster", attributes=cluster)),
        JsonArray(kind=odd, items=[{odd: odd}]),
        Point("cpu_user", NODE | {"hostname": odd, odd: odd}, 1.0, 1.0),
    )
    for line in lines(*records):
        assert line.replace("\N{REPLACEMENT CHARACTER}", "").isprintable(), ascii(line)


def test_an_impossible_number_costs_its_record() -> None:
    size = 10**400
    attributes = SysinfoAttributes(
        time="", cluster="fox", node="n1", os_name="", os_release="", architecture="", sockets=1,
        cores_per_socket=1, threads_per_core=1, memory=size, cpu_model="",
        numa_nodes=1,
    )  # fmt: skip
    bad = SysinfoEnvelope(meta=META, data=SysinfoData(type="sysinfo", attributes=attributes))
    found = lines(bad, Point("a", NODE, size, 1.0), Point("b", NODE, 2.0, 1.0))
    assert "not shown: a number is impossible: int too large" in found[0]
    assert [line.split()[-1] for line in found[-2:]] == ["-", "2"]


def test_an_envelope_of_errors_shows_them() -> None:
    error = ErrorObject(time="", detail="squeue: not \x1b[2Jhere")
    assert lines(JobsEnvelope(meta=META, errors=[error])) == [
        "squeue: not \N{REPLACEMENT CHARACTER}[2Jhere"
    ]
