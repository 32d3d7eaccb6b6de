"""Jobs from envelopes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ccagent.stores.jobstats.job_records import RefusedEnvelopeError, decode_jobs

LATEST = datetime(2026, 11, 22, 12, tzinfo=UTC)


def envelope(*jobs: dict[str, Any], **attributes: Any) -> bytes:
    found = {
        "time": "2026-11-22T10:00:00+01:00",
        "cluster": "fox",
        "slurm_jobs": jobs,
        **attributes,
    }
    meta = {"producer": "ccagent", "version": "1", "format": 0}
    return json.dumps({"meta": meta, "data": {"type": "jobs", "attributes": found}}).encode()


def test_steps_are_no_jobs_and_the_last_run_counts() -> None:
    rows = decode_jobs(
        envelope(
            {"job_id": 5, "job_state": "REQUEUED", "start_time": "2026-11-22T08:00:00+01:00"},
            {"job_id": 5, "job_state": "RUNNING", "start_time": "2026-11-22T09:00:00+01:00"},
            {"job_id": 5, "job_step": "0", "job_state": "RUNNING"},
            {"job_id": 3, "job_state": "PENDING", "account": "phys"},
        ),
        LATEST,
    )
    assert [(row[1], row[6], row[3]) for row in rows] == [
        (3, "PENDING", "phys"), (5, "RUNNING", None),
    ]  # fmt: skip


def test_an_envelope_of_errors_has_no_jobs() -> None:
    meta = {"producer": "ccagent", "version": "1", "format": 0}
    assert decode_jobs(json.dumps({"meta": meta, "errors": []}).encode(), LATEST) == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", envelope(time="noon"), envelope({"job_id": "5", "job_state": "X"}),
        envelope({"job_id": 2**70, "job_state": "X"}),
    ],
)  # fmt: skip
def test_what_can_never_be_stored_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedEnvelopeError):
        decode_jobs(body, LATEST)


def test_the_name_of_a_job_costs_no_other_job() -> None:
    odd = {"job_id": 1, "job_state": "RUNNING", "job_name": "a\0" + "\u00e9" * 600}
    rows = decode_jobs(envelope(odd, {"job_id": 2, "job_state": "RUNNING"}), LATEST)
    assert [(row[1], row[5]) for row in rows] == [(1, "a\ufffd" + "\u00e9" * 510), (2, None)]


def test_an_envelope_of_the_future_is_refused() -> None:
    with pytest.raises(RefusedEnvelopeError, match="in the future; check the clocks"):
        decode_jobs(envelope(time="2026-11-22T12:00:01Z"), LATEST)
