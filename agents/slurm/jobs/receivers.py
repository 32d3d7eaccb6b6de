"""Envelopes of kind `job` as receivers want them that are stricter than the specification."""

from __future__ import annotations

from typing import Any

import msgspec

TIMES = ("submit_time", "start_time", "end_time")
"""Fields that Jobanalyzer requires, and that slurm-monitor refuses when they are empty."""

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def fill_in_times(body: bytes) -> bytes:
    """Return an encoded JobsEnvelope in which no job lacks a time: one that has none gets `""`.

    For Jobanalyzer's insert. Envelopes leave out what is empty, as slurm-monitor wants it. A body
    that is no such envelope is returned as it is.
    """
    try:
        envelope: Any = _decoder.decode(body)
        jobs = envelope["data"]["attributes"]["slurm_jobs"]
        missing = [(job, name) for job in jobs for name in TIMES if name not in job]
        for job, name in missing:
            job[name] = ""
    except (msgspec.MsgspecError, LookupError, TypeError):
        return body
    return _encoder.encode(envelope) if missing else body
