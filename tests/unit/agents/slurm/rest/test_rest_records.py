"""The records from answers of slurmrestd, in the forms of each version, are those of sacct."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm import sinfo
from ccagent.agents.slurm.jobs import squeue
from ccagent.agents.slurm.jobs.sacct import FIELDS, Parser
from ccagent.agents.slurm.jobs.scontrol import NodeShare
from ccagent.agents.slurm.rest import forms
from ccagent.agents.slurm.rest.accounting_rows import Repair, make_rows
from ccagent.agents.slurm.rest.source import list_shares, make_row
from ccagent.agents.slurm.sinfo import NodeTopology
from ccagent.agents.slurm.values import split_rows
from ccagent.records.envelopes import SlurmJob
from tests.support.slurm_rest import RECORDED, VERSIONS, answers, unset

SECOND_STEP = (700016, "1")
"""A step that ended with code 7, which slurmrestd does not give before v0.0.40."""


def records(rows: Any) -> dict[tuple[int, str, str], SlurmJob]:
    complaints: list[str] = []
    parser = Parser(complaints.append, with_gres_detail=True)
    jobs = [parser.record(row) for row in rows]
    assert complaints == []
    return {(job.job_id, job.job_step, job.submit_time): job for job in jobs}


def accounted(minor: int) -> dict[tuple[int, str, str], SlurmJob]:
    found = answers(minor)
    repair = Repair(f"v0.0.{minor}")
    for job in found[f"/slurm/v0.0.{minor}/jobs"]["jobs"]:
        repair.note(job)
    jobs = found[f"/slurmdb/v0.0.{minor}/jobs"]["jobs"]
    return records(row for job in jobs for row in make_rows(job, repair))


@pytest.mark.parametrize("minor", VERSIONS)
def test_the_records_are_those_of_sacct(minor: int) -> None:
    rows = split_rows([(RECORDED / "rest-sacct.txt").read_bytes()], b"\x1f", len(FIELDS))
    expected = records(row for row in rows if len(row) == len(FIELDS))
    told = accounted(minor)
    compared = 0
    for key, job in expected.items():
        for field in SlurmJob.__struct_fields__:
            if field == "sacct" and job.job_state == "RUNNING":
                continue  # its time went on between the two recordings
            if field == "exit_code" and key[:2] == SECOND_STEP and minor < 40:
                continue
            compared += 1
            assert getattr(told[key], field) == getattr(job, field), (key, field)
    assert compared > 700


@pytest.mark.parametrize("minor", VERSIONS)
def test_the_queue_is_the_same_in_each_version(minor: int) -> None:
    jobs = answers(minor)[f"/slurm/v0.0.{minor}/jobs"]["jobs"]
    rows = [make_row(job) for job in jobs]
    assert rows == [make_row(job) for job in answers()["/slurm/v0.0.38/jobs"]["jobs"]]
    by_name = {row.name: squeue.parse_job(row) for row in rows}
    held = by_name[b"held array"]
    assert (held.job_state, held.array_job_id, held.start_time) == ("PENDING", 0, "")
    assert by_name[b"het"].het_job_id == 700019
    assert by_name[b"unlimited"].time_limit == 1
    assert by_name[b"running"].nodes == ["c1-2"]


@pytest.mark.parametrize("minor", VERSIONS)
def test_cpus_and_cards_of_a_running_job(minor: int) -> None:
    jobs = answers(minor)[f"/slurm/v0.0.{minor}/jobs"]["jobs"]
    (job,) = (one for one in jobs if one["name"] == "running")
    job["gres_detail"] = ["gpu:a100:2(IDX:0,3)"]
    topology = {"c1-2": NodeTopology(2, 16, 2)}
    share = NodeShare([20, 21, 22, 23], [0, 3], "gpu:a100:2(IDX:0,3)")
    job_of_second_socket = _move_to_socket(job, minor)
    assert list_shares(job_of_second_socket, topology) == {"c1-2": share}
    unknown = list_shares(job, {})
    assert unknown == {"c1-2": share._replace(cpus=[])}


def _move_to_socket(job: dict[str, Any], minor: int) -> dict[str, Any]:
    """Let the cores 2 and 3 be those of the second socket with eight cores."""
    resources = job["job_resources"]
    if minor >= 41:
        resources["nodes"]["allocation"][0]["sockets"][0]["index"] = 1
    else:
        node = resources["allocated_nodes"][0]
        node["sockets"] = {"1": node["sockets"]["0"]}
    return job


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"status": "SUCCESS", "return_code": 0}, b"0:0"),
        ({"status": "PENDING"}, b"0:0"),
        ({"status": "SIGNALED", "signal": {"signal_id": 9, "name": "Killed"}}, b"0:9"),
        ({"status": "SIGNALED", "return_code": -127, "signal": {"signal_id": 9}}, b"0:9"),
        ({"status": ["ERROR"], "return_code": unset(7), "signal": {"id": unset(None)}}, b"7:0"),
        ({"status": ["ERROR"], "return_code": unset(255), "signal": {"id": unset(0)}}, b"127:0"),
        ({"status": ["SIGNALED"], "return_code": unset(0), "signal": {"id": unset(11)}}, b"0:11"),
        (768, b"3:0"),
        (11, b"0:11"),
        (unset(65280), b"127:0"),
        (None, b"0:0"),
    ],
)
def test_exit_codes(value: Any, text: bytes) -> None:
    assert forms.exit_code(value) == text


@pytest.mark.parametrize(("version", "text"), [("v0.0.43", b"127:0"), ("v0.0.44", b"255:0")])
def test_codes_above_128_are_those_of_the_releases_sacct(version: str, text: bytes) -> None:
    failed = {"status": ["ERROR"], "return_code": unset(255)}
    job = {"job_id": 7, "exit_code": failed, "steps": [{"step": {"id": "0"}, "exit_code": failed}]}
    rows = list(make_rows(job, Repair(version)))
    assert [row[FIELDS.index("ExitCode")] for row in rows] == [text, text]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("COMPLETED", b"COMPLETED"),
        (["COMPLETED"], b"COMPLETED"),
        (["PENDING", "REQUEUED"], b"REQUEUED"),
        (["RUNNING", "RESIZING"], b"RESIZING"),
        (["COMPLETED", "COMPLETING"], b"COMPLETING"),
        ([], b""),
        (None, b""),
    ],
)
def test_states(value: Any, text: bytes) -> None:
    assert forms.state(value) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (unset(5), 5),
        (unset(None), None),
        ({"set": False, "infinite": True, "number": 0}, None),
        (4294967294, None),
        (2**64 - 2, None),
        (-2, None),
        (None, None),
        (True, None),
        ("5", None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_numbers(value: Any, expected: int | None) -> None:
    assert forms.number(value) == expected


def test_resources_have_the_units_of_sacct() -> None:
    found = [
        {"type": "mem", "name": "", "count": 512},
        {"type": "energy", "name": "", "count": -2},
        {"type": "gres", "name": "gpu", "count": 1},
        {"type": "gres", "name": "gpu:a100", "count": 1},
        {"type": "license", "name": "matlab", "count": 3},
        {"type": "cpu", "name": None, "count": None},
        "odd",
    ]
    expected = b"gres/gpu:a100=1,gres/gpu=1,license/matlab=3,mem=512M"
    assert forms.tres(found) == expected
    assert forms.tres("mem=1G,cpu=2") == b"cpu=2,mem=1G"


def test_the_cpu_time_of_a_job_is_that_of_its_ended_steps() -> None:
    def step(name: str, state: str, seconds: int) -> dict[str, Any]:
        times = {"user": {"seconds": seconds, "microseconds": 600_000}}
        return {"step": {"id": f"7.{name}"}, "state": [state], "time": times}

    steps = [step("0", "COMPLETED", 1), step("1", "FAILED", 2), step("batch", "RUNNING", 50)]
    job = {"job_id": 7, "state": {"current": ["RUNNING"]}, "steps": steps}
    row, *rows = make_rows(job, Repair("v0.0.44"))
    assert row[FIELDS.index("UserCPU")] == b"00:04.200"
    assert [one[FIELDS.index("JobIDRaw")] for one in rows] == [b"7.0", b"7.1", b"7.batch"]


@pytest.mark.parametrize("state", ["DEADLINE", "NODE_FAIL", "BOOT_FAIL"])
def test_the_code_of_a_job_that_never_started_is_slurmctlds(state: str) -> None:
    repair = Repair("v0.0.38")
    repair.note({"job_id": 7, "submit_time": 100, "start_time": 160, "exit_code": 256})
    times = {"submission": 100, "start": 0}
    (row,) = make_rows({"job_id": 7, "state": {"current": state}, "time": times}, repair)
    assert row[FIELDS.index("ExitCode")] == b"1:0"


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ({"id": 3, "het": {"component": None}}, b"7.3"),
        ({"id": 3, "het": {"component": 1}}, b"7.3+1"),
        ({"id": {"job_id": 7, "step_id": "extern"}}, b"7.extern"),
        ({"id": {"job_id": 7, "step_id": "0", "step_het_component": 1}}, b"7.0+1"),
        ({"id": "7.interactive"}, b"7.interactive"),
    ],
)
def test_names_of_steps(step: Any, name: bytes) -> None:
    job = {"job_id": 7, "steps": [{"step": step}]}
    _, row = make_rows(job, Repair("v0.0.38"))
    assert row[FIELDS.index("JobIDRaw")] == name


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["set", "number", "infinite", "type", "name", "count", "id", "x"]), inner
    ),
)  # fmt: skip


@pytest.mark.slow
@given(key=st.sampled_from(sorted(answers()["/slurmdb/v0.0.38/jobs"]["jobs"][0])), value=ODD)
def test_a_damaged_field_costs_itself(key: str, value: Any) -> None:
    job = answers()["/slurmdb/v0.0.38/jobs"]["jobs"][0] | {key: value}
    for row in make_rows(job, Repair("v0.0.38")):
        assert len(row) == len(FIELDS)


@given(key=st.sampled_from(sorted(answers()["/slurm/v0.0.38/jobs"]["jobs"][0])), value=ODD)
def test_a_damaged_job_of_the_queue_costs_itself(key: str, value: Any) -> None:
    job = answers()["/slurm/v0.0.38/jobs"]["jobs"][0] | {key: value}
    make_row(job)
    list_shares(job, {"c1-2": NodeTopology(1, 8, 1)})


def test_lines_of_partitions_are_those_that_sinfo_prints() -> None:
    text = b"normal|c1-[1-2]|\nempty||"
    parsed = sinfo.parse_partitions(text, lambda _: None)
    assert [(one.name, one.nodes) for one in parsed] == [("normal", ["c1-[1-2]"]), ("empty", [])]
