"""The summary of jobstats: what readers divide by is always there."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from ccagent.views.amounts import GB
from ccagent.views.job.figures import JobFigures
from ccagent.views.job.formats import encode_summary
from tests.unit.views.job.support import card, job, node, report


def decode(figures: JobFigures) -> Any:
    text = encode_summary(report(figures))
    assert text.startswith("JS1:H4s")
    return json.loads(gzip.decompress(base64.b64decode(text[4:])))


def test_figures_of_nodes_and_cards() -> None:
    cards = (card(utilization=42.04), card("1", utilization=0.0, memory_peak=0.0))
    assert decode(job(node(cards=cards))) == {
        "nodes": {"n1": {
            "total_memory": 64 << 30, "used_memory": 50 << 30, "total_time": 109440.0, "cpus": 16,
            "gpu_total_memory": {"0": 80 << 30, "1": 80 << 30},
            "gpu_used_memory": {"0": 60 << 30, "1": 0},
            "gpu_utilization": {"0": 42.0, "1": 0.0},
        }},
        "total_time": 7200, "gpus": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [card(utilization=None), card(memory_total=None), card(memory_total=0.0),
     card(memory_peak=None)],
)  # fmt: skip
def test_a_card_that_is_not_known_is_left_out(odd: Any) -> None:
    assert "gpu_utilization" not in decode(job(node(cards=(odd,))))["nodes"]["n1"]


def test_nothing_stands_without_its_total() -> None:
    found = decode(job(node(memory_limit=None, cores=None), node("n2", samples=0)))
    assert found["nodes"] == {"n1": {}}


def test_the_same_job_has_the_same_summary() -> None:
    assert encode_summary(report(job())) == encode_summary(report(job()))


def test_jobs_that_are_short_or_have_no_data() -> None:
    assert encode_summary(report(job(node(samples=1), elapsed=59.0))) == "JS1:Short"
    assert encode_summary(report(job(node(samples=1)))) == "JS1:None"
    assert encode_summary(report(job(node(samples=0)))) == "JS1:None"
    assert encode_summary(report(job(elapsed=120.0))).startswith("JS1:H4s")


def test_a_thousand_nodes_fit_into_a_comment() -> None:
    nodes = [node(f"n{n:04d}", memory_peak=n * GB / 20) for n in range(1000)]
    assert len(encode_summary(report(job(*nodes)))) < 40_000
