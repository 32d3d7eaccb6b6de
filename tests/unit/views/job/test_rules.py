"""The table of rules, and how findings become a verdict."""

from __future__ import annotations

import pytest

from ccagent.views.amounts import GB
from ccagent.views.job.figures import JobFigures
from ccagent.views.job.rules import RULE_NAMES, RULES
from tests.unit.views.job.support import HOUR, card, job, levels, node, report, text


def test_a_good_job_has_nothing_to_improve() -> None:
    found = report(job())
    assert (found.level, found.hidden) == ("ok", ())
    assert found.findings[0].text == "nothing to improve"


def test_one_bad_hides_weaker_advice() -> None:
    found = report(job(node(cpu_seconds=1.0, memory_peak=20 * GB)))
    assert [one.rule for one in found.findings] == ["cpu-zero"]
    assert [one.rule for one in found.hidden] == ["mem-excess"]


def test_hints_stand_beside_each_other() -> None:
    figures = job(node(memory_peak=20 * GB), time_limit=4 * HOUR)
    assert levels(figures) == {"mem-excess": "hint", "time": "hint"}


def test_two_causes_that_are_bad_are_both_told() -> None:
    figures = job(node(oom_kills=1, cards=(card(utilization=0.0, peak_utilization=0.0),)))
    assert levels(figures) == {"mem-limit": "BAD", "gpu-idle": "BAD"}


@pytest.mark.parametrize(("samples", "expected"), [(216, "BAD"), (215, "hint")])
def test_bad_needs_most_of_the_samples(samples: int, expected: str) -> None:
    found = levels(job(node(cpu_seconds=0.0, samples=samples)))
    assert found["cpu-zero"] == expected
    assert ("unknown" in found) is (expected == "hint")


def test_a_state_is_bad_without_samples() -> None:
    figures = job(node(samples=100), state="TIMEOUT")
    assert levels(figures) == {"time": "BAD", "unknown": "unknown"}


def test_nodes_that_told_nothing_are_named() -> None:
    silent = node("n2", samples=0, cpu_seconds=None, memory_peak=None)
    assert "1 of 2 nodes reported (not n2)" in text(job(node(), silent), "unknown")


@pytest.mark.parametrize(("samples", "expected"), [(1, "too short: 1"), (2, "too short to judge")])
def test_two_samples_are_needed(samples: int, expected: str) -> None:
    figures = job(
        node(samples=samples), elapsed=60.0, time_limit=70.0, expected_samples=samples
    )  # fmt: skip
    assert report(figures).level == "short"
    assert text(figures, "short").startswith(expected)


def test_a_long_job_without_samples_is_unknown() -> None:
    figures = job(node(samples=0, cpu_seconds=None))
    assert report(figures).level == "unknown"
    assert text(job(node(samples=1)), "short").startswith("1 sample in 2:00:00")
    assert report(job(node(samples=1))).level == "unknown"


def test_rules_can_be_switched_off() -> None:
    figures = job(node(cpu_seconds=1.0))
    assert levels(figures, off=["cpu-zero", "cpu-low"]) == {"ok": "ok"}


def test_names_are_unique_and_rules_replace_known_ones() -> None:
    assert len(set(RULE_NAMES)) == len(RULES)
    assert {name for rule in RULES for name in rule.replaces} <= set(RULE_NAMES)


@pytest.mark.parametrize(
    "figures",
    [
        JobFigures(job="1"), job(node(cores=None)), job(node(memory_limit=None)), job(time_limit=0),
        job(node(cores=0)), job(elapsed=0.0), job(node(total_cores=0, total_memory=0)),
        job(node(cards=(card(memory_total=0),), total_cards=0)), job(gpus=None),
        job(node(cores_first=0.0)), job(expected_samples=0),
    ],
)  # fmt: skip
def test_missing_figures_raise_nothing(figures: JobFigures) -> None:
    assert report(figures).findings
