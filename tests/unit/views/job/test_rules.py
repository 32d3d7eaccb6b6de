"""Rules about requests, the table of rules, and how findings become a verdict."""

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
    figures = job(node(oom_kills=1, cards=(card(utilization=0.0),)))
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


def test_names_are_unique() -> None:
    assert len(set(RULE_NAMES)) == len(RULES)


@pytest.mark.parametrize(
    "figures",
    [
        JobFigures(job="1"), job(node(cores=None)), job(node(memory_limit=None)), job(time_limit=0),
        job(node(cores=0)), job(elapsed=0.0), job(node(total_cores=0, total_memory=0)),
        job(node(cards=(card(memory_total=0),), total_cards=0)), job(gpus=None),
        job(expected_samples=0), job(use=None), job(node(io_pressure=99.0, cpu_seconds=0.0)),
    ],
)  # fmt: skip
def test_missing_figures_raise_nothing(figures: JobFigures) -> None:
    assert report(figures).findings


@pytest.mark.parametrize(("peak", "expected"), [(57.59, None), (57.6, "hint")])
def test_a_peak_near_the_limit(peak: float, expected: str | None) -> None:
    assert levels(job(node(memory_peak=peak * GB))).get("mem-limit") == expected


def test_waiting_for_memory_explains_a_low_use() -> None:
    found = report(job(node(memory_pressure=35.0, memory_peak=40 * GB, cpu_seconds=2 * HOUR)))
    assert [(one.rule, one.resource) for one in found.findings] == [("mem-pressure", "memory")]
    assert found.findings[0].text == (
        "35 % of the time a task waited for memory on n1 (limit 64 GB, peak 40 GB); from 10 % on it"
        " slows the job. Try --mem=80G: it can save up to 35 % of the run time."
    )


def test_without_a_limit_no_number_is_made_up() -> None:
    assert text(job(node(memory_pressure=50.0, memory_limit=None)), "mem-pressure") == (
        "50 % of the time a task waited for memory on n1; from 10 % on it slows the job. Ask for"
        " more with --mem: it can save up to 50 % of the run time."
    )


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL"])
def test_the_peak_of_a_job_that_failed_says_nothing(state: str) -> None:
    assert levels(job(node(memory_peak=GB), state=state)) == {"ok": "ok"}


def test_page_cache_up_to_the_limit_is_no_peak() -> None:
    assert levels(job(node(memory_charged=64 * GB))) == {"ok": "ok"}


@pytest.mark.parametrize(("pressure", "expected"), [(9.9, None), (10.0, "hint")])
def test_waiting_for_memory(pressure: float, expected: str | None) -> None:
    assert levels(job(node(memory_pressure=pressure))).get("mem-pressure") == expected


def test_killed_processes_are_bad() -> None:
    assert levels(job(node(oom_kills=1)))["mem-limit"] == "BAD"
    figures = job(
        node(memory_limit=32 * GB, memory_peak=31.8 * GB, oom_kills=3), state="OUT_OF_MEMORY"
    )
    assert text(figures, "mem-limit") == (
        "stopped: out of memory, 3 processes killed. It needed more than 32 GB; how much is"
        " unknown. Try --mem=40G (limit + 20 %)."
    )
    assert levels(job(node(memory_limit=None), state="OUT_OF_MEMORY"))["mem-limit"] == "BAD"


@pytest.mark.parametrize(
    ("peak", "expected"), [(44.8, None), (44.79, "hint"), (6.4, "hint"), (6.39, "BAD")]
)
def test_memory_that_was_not_needed(peak: float, expected: str | None) -> None:
    assert levels(job(node(memory_peak=peak * GB))).get("mem-excess") == expected


def test_the_text_of_excess_says_what_to_ask_for() -> None:
    assert text(job(node(memory_peak=8 * GB)), "mem-excess") == (
        "12 % of memory used: 8 of 64 GB, page cache not counted; below 70 % others could use the"
        " rest. Try --mem=10G (peak + 20 %)."
    )


def test_excess_is_for_jobs_that_ended() -> None:
    figures = job(node(memory_peak=GB), state="RUNNING", stop=None)
    assert levels(figures) == {"ok": "ok"}


def test_nobody_else_could_use_the_memory_of_a_node_of_its_own() -> None:
    low = node(memory_peak=1 * GB)
    assert levels(job(low)) == {"mem-excess": "BAD"}
    assert levels(job(low, is_exclusive=True)) == {"ok": "ok"}


def test_a_peak_may_be_in_the_samples_that_are_missing() -> None:
    assert levels(job(node(memory_peak=1 * GB, samples=120))) == {"unknown": "unknown"}


@pytest.mark.parametrize(
    ("state", "expected"),
    [("OUT_OF_MEMORY", "stopped:"), ("FAILED", "stopped:"), ("COMPLETED", "short of")],
)
def test_a_job_that_went_on_was_not_stopped(state: str, expected: str) -> None:
    found = text(job(node(oom_kills=1), state=state), "mem-limit")
    assert found.startswith(f"{expected}")
    assert "1 process killed" in found


@pytest.mark.parametrize(("per_core", "expected"), [(3.99, "hint"), (4.0, None)])
def test_memory_that_comes_with_the_cores(per_core: float, expected: str | None) -> None:
    found = levels(job(node(memory_peak=20 * GB)), default_memory_per_core=per_core)
    assert found.get("mem-excess") == expected


@pytest.mark.parametrize(("total", "expected"), [(18, None), (19, "hint")])
def test_memory_of_a_job_with_most_of_a_node(total: float, expected: str | None) -> None:
    found = levels(job(node(memory_peak=20 * GB, total_cores=total)))
    assert found.get("mem-excess") == expected


@pytest.mark.parametrize(("per_gpu", "expected"), [(63.9, "hint"), (64.0, None)])
def test_memory_of_gpu_jobs(per_gpu: float, expected: str | None) -> None:
    figures = job(node(memory_peak=20 * GB, cards=(card(),)))
    assert levels(figures, mem_excess_per_gpu=per_gpu).get("mem-excess") == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(20.0, "hint"), (20.1, "BAD"), (3.34, "hint"), (3.33, None)],
)
def test_time_that_was_not_needed(limit: float, expected: str | None) -> None:
    assert levels(job(time_limit=limit * HOUR)).get("time") == expected


@pytest.mark.parametrize(("elapsed", "expected"), [(900.0, None), (901.0, "BAD")])
def test_time_needs_fifteen_minutes(elapsed: float, expected: str | None) -> None:
    figures = job(node(cpu_seconds=15 * elapsed), elapsed=elapsed, time_limit=24 * HOUR)
    assert levels(figures).get("time") == expected


@pytest.mark.parametrize("state", ["RUNNING", "FAILED", "CANCELLED"])
def test_time_is_judged_of_completed_jobs(state: str) -> None:
    assert "time" not in levels(job(state=state, time_limit=100 * HOUR))


def test_a_timeout_is_bad() -> None:
    figures = job(state="TIMEOUT", time_limit=2 * HOUR)
    assert levels(figures) == {"time": "BAD"}
    assert "--time=2:30:00" in text(figures, "time")


@pytest.mark.parametrize(("total", "expected"), [(32, None), (33, "BAD")])
def test_few_cores_of_several_nodes(total: float, expected: str | None) -> None:
    nodes = [node(name, total_cores=total, memory_peak=46 * GB) for name in ("n1", "n2")]
    assert levels(job(*nodes)).get("fragmented") == expected


@pytest.mark.parametrize(("peak", "expected"), [(51.2, "BAD"), (51.3, None)])
def test_fragmented_jobs_fit_into_the_memory_of_fewer_nodes(
    peak: float, expected: str | None
) -> None:
    nodes = [node(name, total_cores=64, memory_peak=peak * GB) for name in ("n1", "n2")]
    assert levels(job(*nodes)).get("fragmented") == expected


def test_a_memory_limit_of_0_judges_no_fragmentation() -> None:
    nodes = [node(name, total_cores=64, memory_peak=GB) for name in ("n1", "n2")]
    assert "fragmented" not in levels(job(*nodes), fragmented_memory=0.0)


@pytest.mark.parametrize(("count", "expected"), [(2, None), (4, "hint")])
def test_gpus_on_several_nodes(count: int, expected: str | None) -> None:
    cards = (card("0"), card("1"))
    nodes = [node(name, total_cards=count, cards=cards) for name in ("n1", "n2")]
    assert levels(job(*nodes)).get("gpu-spread") == expected


def test_one_node_less_is_a_hint() -> None:
    nodes = [
        node(name, cores=10, cpu_seconds=19 * HOUR, total_cores=24) for name in ("a", "b", "c")
    ]
    assert levels(job(*nodes)) == {"fragmented": "hint"}
    assert "2 nodes would do: --nodes=2" in text(job(*nodes), "fragmented")
