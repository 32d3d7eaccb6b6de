"""Details of jobs out of what scontrol printed for commands on its standard input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm.jobs import scontrol
from ccagent.agents.slurm.jobs.scontrol import JobDetails, NodeShare
from ccagent.agents.slurm.sinfo import (
    NodeTopology,
    Numbering,
    number_hwthreads,
    parse_topology,
)
from ccagent.errors import UnparsableError
from ccagent.records.envelopes import SlurmJob
from tests.support.slurm_recorded import DIRECTORY

NAMES = ("22", "23", "24", "9999", "25_0")
RECORDED = (DIRECTORY / "scontrol-session.txt").read_bytes()


@pytest.fixture
def details() -> dict[str, JobDetails]:
    return scontrol.parse(RECORDED, NAMES, "x0123")


def test_processors_and_gpus_of_each_node(details: dict[str, JobDetails]) -> None:
    assert details["22"].nodes == {"c1-1": NodeShare([3, 4, 5], []), "c1-2": NodeShare([0], [])}
    assert details["24"].nodes == {"gpu-1": NodeShare([0, 1], [0, 1], "gpu:a100:2(IDX:0-1)")}
    assert details["25_0"].nodes == {"c1-1": NodeShare([1], [])}


def test_the_text_is_that_of_one_job(details: dict[str, JobDetails]) -> None:
    text = details["25_0"].text
    assert text.startswith("JobId=26 ArrayJobId=25 ArrayTaskId=0 JobName=arr\n")
    assert text.endswith("Power=")
    assert details["22"].script == (
        "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nsleep 120\n"
    )


def test_a_job_that_slurmctld_has_forgotten_has_none(details: dict[str, JobDetails]) -> None:
    assert "9999" not in details


def test_lines_in_a_jobs_name_are_not_believed(details: dict[str, JobDetails]) -> None:
    # Name and comment of job 23 hold lines `Nodes=c1-1 CPU_IDs=7 ...`.
    assert "CPU_IDs=7" in details["23"].text
    assert details["23"].nodes == {}


@pytest.mark.parametrize("injected", ["scontrol: show hostnames x0123x", "JobId=23 ", "x0122"])
def test_a_name_does_not_end_the_answer(injected: str) -> None:
    fake = f"a\n     Nodes=c1-1 CPU_IDs=9 Mem=1 GRES=\n{injected}\n"
    output = RECORDED.replace(b"JobName=plain", f"JobName={fake}".encode())
    found = scontrol.parse(output, NAMES, "x0123")
    assert found["22"].nodes == {}
    assert found["24"].nodes


def test_without_readline_the_prompt_is_before_the_output() -> None:
    output = (
        b"scontrol: JobId=7 JobName=x\n   JobState=RUNNING Reason=None\n"
        b"     Nodes=c[1-2] CPU_IDs=0-1,4 Mem=1 GRES=gpu:a100:1(IDX:2),nic:1(IDX:0)\n"
        b"scontrol: x0123\nscontrol: x0123\nscontrol: "
    )
    share = NodeShare([0, 1, 4], [2], "gpu:a100:1(IDX:2),nic:1(IDX:0)")
    assert scontrol.parse(output, ["7"], "x0123")["7"].nodes == {"c1": share, "c2": share}


def test_each_job_is_asked_for_alone() -> None:
    assert scontrol.name_of(SlurmJob(job_id=7, job_state="RUNNING")) == "7"
    task = SlurmJob(job_id=26, job_state="RUNNING", array_job_id=25)
    assert scontrol.name_of(task) == "25_0"
    component = SlurmJob(job_id=51, job_state="RUNNING", het_job_id=50, het_job_offset=1)
    assert scontrol.name_of(component) == "50+1"


@pytest.mark.parametrize("text", ["0-", "a", "1,,2", "0-999999", "1-2-3", "٣"])
def test_odd_lists_of_processors(text: str) -> None:
    with pytest.raises(UnparsableError):
        scontrol.parse_ids(text)


@given(st.binary())
def test_any_output_is_details_or_none(output: bytes) -> None:
    scontrol.parse(b"JobId=7 \n   JobState=RUNNING\n     Nodes=" + output, ["7"], "x0123")


@pytest.mark.parametrize(
    ("numbering", "expected"), [("linux", [0, 1, 32, 33]), ("slurm", [0, 1, 2, 3])]
)
def test_second_threads_are_numbered_after_all_cores(
    numbering: Numbering, expected: list[int]
) -> None:
    assert number_hwthreads(range(4), NodeTopology(2, 32, 2), numbering) == expected


def test_the_topology_of_nodes() -> None:
    complaints: list[str] = []
    found = parse_topology(b"c1|2|16|2|\nodd\nc2|1|8|1|\nc2|1|8|1|\n", complaints.append)
    assert found == {"c1": NodeTopology(2, 32, 2), "c2": NodeTopology(1, 8, 1)}
    assert complaints == ["sinfo: not a line of a node: 'odd'"]
