"""What Slurm has set in the environment of a job."""

from __future__ import annotations

from ccagent.views.top.snapshot import JobEnvironment, parse_job_environment


def test_names_and_times() -> None:
    content = (
        b"HOME=/\0SLURM_JOB_NAME=relax.sh\0SLURM_JOB_PARTITION=normal\0"
        b"SLURM_JOB_START_TIME=1800000000\0SLURM_JOB_END_TIME=1800086400\0SLURM_CPUS_ON_NODE=8\0"
    )
    assert parse_job_environment(content) == JobEnvironment(
        "relax.sh", "normal", 1_800_000_000, 1_800_086_400, 8
    )


def test_what_is_no_job_has_none() -> None:
    assert parse_job_environment(b"HOME=/\0SLURM_CONF=x\0") is None
    assert parse_job_environment(b"SLURM_CPUS_ON_NODE=8\0") is None
    assert parse_job_environment(b"") is None


def test_odd_values_are_unknown() -> None:
    content = b"SLURM_JOB_START_TIME=-1\0SLURM_JOB_END_TIME=" + b"9" * 30 + b"\0SLURM_JOB_NAME=\xff"
    found = parse_job_environment(content)
    assert found == JobEnvironment("\N{REPLACEMENT CHARACTER}", "", 0, 0)
    long = parse_job_environment(b"SLURM_JOB_NAME=" + b"x" * 10_000)
    assert long is not None
    assert len(long.name) == 256
