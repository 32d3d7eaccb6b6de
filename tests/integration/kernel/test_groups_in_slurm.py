"""Jobs of a real Slurm 22.05 whose control groups are named as Slurm 26.05 names them.

Slurm runs in an emulated machine with Debian's kernel: emulated_slurm.py. That takes minutes:
HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.debian_machine import download_kernel, run_in_machine
from tests.support.effort import IS_NIGHTLY

pytestmark = pytest.mark.skipif(not IS_NIGHTLY, reason="takes minutes: HYPOTHESIS_PROFILE=nightly")

_FAILURES: list[Exception] = []
"""Why the machine could not be had: tests that are tried again do not start another one."""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was told of a job with its number, one with a SLUID, and a short one like it."""
    if _FAILURES:
        raise _FAILURES[0]
    directory = tmp_path_factory.mktemp("slurm-groups")
    try:
        output = run_in_machine(
            download_kernel(directory), directory, "tests.support.slurm_group_scenarios",
            time_limit=1800,
        )  # fmt: skip
        (line,) = [line for line in output.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(line)
        assert "error" not in found, found["error"]
    except Exception as error:
        _FAILURES.append(error)
        raise
    return found


def test_one_group_has_its_number_and_one_does_not(results: dict[str, Any]) -> None:
    numbered, named = results["jobs"]
    assert results["running"]["names"] == [f"job_{numbered}", f"s{named:013X}"]
    assert results["running"]["unknown"] == []


@pytest.mark.parametrize("source", ["procfs", "bpf", "psutil"])
def test_each_process_is_in_its_job(results: dict[str, Any], source: str) -> None:
    running = results["running"]
    assert running["truth"] == results["jobs"]
    assert running["compared"][source] >= 2
    assert running["wrong"][source] == {}


@pytest.mark.parametrize("reader", ["directories", "controls", "jobio", "counters", "energy"])
def test_each_reader_has_both_jobs(results: dict[str, Any], reader: str) -> None:
    assert results["running"][reader] == results["jobs"]


def test_the_exporter_has_the_processes_of_both(results: dict[str, Any]) -> None:
    assert results["running"]["exporter"] == {str(job): [job] for job in results["jobs"]}


@pytest.mark.parametrize("moment", ["written", "written_later", "written_at_last"])
def test_what_jobs_write_is_theirs(results: dict[str, Any], moment: str) -> None:
    """Also if the programs were loaded while the jobs ran."""
    written = results[moment]
    for job in results["jobs"]:
        assert written[str(job)] >= 4096
    if moment == "written_at_last":
        assert written[str(results["short"])] >= 4096


def test_ended_processes_are_in_their_jobs(results: dict[str, Any]) -> None:
    """Those of the short job too, which no reading saw."""
    of_alice = results["ended"]["alice"]
    assert set(of_alice) - {"0"} == {str(job) for job in (*results["jobs"], results["short"])}
    for job in (*results["jobs"], results["short"]):
        assert of_alice[str(job)]["dd"] >= 1
    assert not {"dd", "true", "sleep", "slurm_script"} & of_alice.get("0", {}).keys()


def test_slurms_own_ended_processes_are_in_no_job(results: dict[str, Any]) -> None:
    """slurmstepd leaves the group of its step before it ends; its placeholder does not."""
    assert results["ended"]["own"].get("sleep") == 3, results["ended"]
    assert not [
        command for commands in results["ended"]["root"].values() for command in commands
        if command in ("sleep", "slurmstepd")
    ]  # fmt: skip
