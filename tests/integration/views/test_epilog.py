"""The example of an epilog: it keeps the summary, and never replaces another's comment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.views.conftest import JobStore
from tests.support.paths import ROOT
from tests.support.running import until

GOOD = {"job_cpu_util": 1520.0, "job_mem_rss": 50.0}
EPILOG = ROOT / "packaging/examples/slurm-epilog.sh"


def run(
    directory: Path, jobs: JobStore, job: str, comment: str, sacct: int = 0, **environment: str
) -> str:
    """Run the epilog beside a Slurm that has this comment; return what it has written."""
    asked, written = directory / "asked", directory / "written"
    programs = {
        "ccagent": f'exec {sys.executable} -m ccagent "$@"',
        "sacct": f"echo \"$@\" >{asked}; printf '%s\\n' '{comment}'; exit {sacct}",
        "sacctmgr": f"printf '%s\\n' \"$@\" >{written}.new; mv {written}.new {written}",
    }
    for name, text in programs.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    subprocess.run(
        [EPILOG], check=True, timeout=60,
        env={"PATH": f"{directory}:/usr/bin:/bin", "SLURM_JOB_ID": job, "CCAGENT_STORE": jobs.url,
             "CCAGENT_EPILOG_DELAY": "0", **environment},
    )  # fmt: skip
    until(asked.exists)
    if (comment and not comment.startswith("JS1:")) or sacct:
        # What writes does so at once after it has asked.
        pids = subprocess.run(["pgrep", "-f", str(EPILOG)], capture_output=True, check=False)
        until(lambda: not pids.stdout or not _is_running(pids.stdout))
        return written.read_text() if written.exists() else ""
    until(written.exists)
    return written.read_text()


def _is_running(pids: bytes) -> bool:
    return any(Path("/proc", pid.decode()).exists() for pid in pids.split())


def test_the_summary_is_kept(jobs: JobStore, tmp_path: Path) -> None:
    number = jobs.add(GOOD)
    lines = run(tmp_path, jobs, number, "").splitlines()
    assert lines[:6] == ["--immediate", "--quiet", "update", "job", "where", f"jobid={number}"]
    assert lines[7].startswith("AdminComment=JS1:H4s")


def test_a_summary_is_made_anew_for_a_job_that_was_too_short(
    jobs: JobStore, tmp_path: Path
) -> None:
    assert "JS1:H4s" in run(tmp_path, jobs, jobs.add(GOOD), "JS1:Short")


def test_a_job_without_data_has_a_summary_too(jobs: JobStore, tmp_path: Path) -> None:
    assert "AdminComment=JS1:None" in run(tmp_path, jobs, jobs.add({}), "")


@pytest.mark.parametrize("comment", ["kept by hand", "JS2:x", '{"arrayTaskId": 1}'])
def test_the_comment_of_another_stays(jobs: JobStore, tmp_path: Path, comment: str) -> None:
    assert run(tmp_path, jobs, jobs.add(GOOD), comment) == ""


def test_nothing_is_written_while_accounting_does_not_answer(
    jobs: JobStore, tmp_path: Path
) -> None:
    assert run(tmp_path, jobs, jobs.add(GOOD), "", sacct=1) == ""


def test_the_task_that_has_the_number_of_its_array_is_alone(jobs: JobStore, tmp_path: Path) -> None:
    number = jobs.add(GOOD)
    found = run(
        tmp_path, jobs, number, "", SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID="4"
    )  # fmt: skip
    assert f"jobid={number}_4\n" in found
