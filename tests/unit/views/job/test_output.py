"""The report as JSON."""

from __future__ import annotations

import json

from ccagent.views.job.formats import encode_report
from tests.unit.views.job.support import card, job, node, report


def test_the_object_has_figures_shares_and_findings() -> None:
    found = json.loads(encode_report(report(job(node(cards=(card(),))))))
    assert found["verdict"] == "ok"
    assert found["efficiency"]["cpu"] == {
        "percent": 95.0, "used": 109440.0, "total": 115200.0, "parts": 1,
    }  # fmt: skip
    assert found["job"]["nodes"][0]["cards"][0]["utilization"] == 80.0
    assert (found["samples"], found["coverage"]) == (240, 100.0)


def test_unknown_is_null() -> None:
    found = json.loads(encode_report(report(job(node(cores=None), time_limit=None))))
    assert found["efficiency"]["cpu"] is None
    assert found["efficiency"]["time"] is None
    assert found["job"]["nodes"][0]["cores"] is None
