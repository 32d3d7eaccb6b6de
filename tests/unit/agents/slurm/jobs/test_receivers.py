"""Envelopes of jobs for receivers that require fields."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ccagent.agents.slurm.jobs.receivers import fill_in_times
from tests.support.schema import validate
from tests.unit.agents.slurm.jobs.test_agent import Slurm, job


def test_times_that_jobs_lack_are_empty_for_jobanalyzer(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path)
    slurm.sacct.prints(
        job(1, "PENDING", JobName="smør\n|"),
        job(2, Start="1699999000", End="1699999900", NodeList="c1"),
    )
    (envelope,) = slurm.envelopes(slurm.agent())
    body = msgspec.json.encode(envelope)
    before = json.loads(body)["data"]["attributes"]["slurm_jobs"]
    after = json.loads(fill_in_times(body))["data"]["attributes"]["slurm_jobs"]
    assert "start_time" not in before[0]
    assert after == [before[0] | {"start_time": "", "end_time": ""}, before[1]]
    # By default none is empty, as slurm-monitor wants it.
    validate("JobsEnvelope", body)
    assert b'""' not in body


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"errors":[]}', b'{"data":{"attributes":{"slurm_jobs":[7]}}}']
)
def test_what_is_no_envelope_of_jobs_stays(body: bytes) -> None:
    assert fill_in_times(body) == body
