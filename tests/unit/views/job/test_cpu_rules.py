"""Rules about CPUs, at their thresholds."""

from __future__ import annotations

import pytest

from ccagent.views.job.figures import JobFigures
from tests.unit.views.job.support import HOUR, card, job, levels, node, text

TOTAL = 16 * 2 * HOUR


def used(percent: float, cores: float = 16) -> JobFigures:
    """Return a job of two nodes, so that it can't be serial."""
    part = node(cores=cores, cpu_seconds=percent / 100 * cores * 2 * HOUR, total_cores=None)
    return job(part, part)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(64.99, "BAD"), (65.0, "hint"), (80.0, "hint"), (80.01, None)],
)
def test_low_use(percent: float, expected: str | None) -> None:
    assert levels(used(percent)).get("cpu-low") == expected


def test_the_text_has_figure_threshold_and_option() -> None:
    assert text(used(12.0), "cpu-low") == (
        "12 % CPU use; below 65 % is BAD, the target is 90 %. Ask for 5 cores (--ntasks or"
        " --cpus-per-task), or find out what it waits for."
    )


def test_jobs_with_gpus_are_not_judged_by_their_cpus() -> None:
    assert levels(job(node(cpu_seconds=0.1 * TOTAL, cards=(card(),)))) == {"ok": "ok"}


@pytest.mark.parametrize(
    ("work", "expected"),
    [(0.85, "cpu-low"), (0.86, "serial"), (1.0, "serial"), (1.009, "serial"), (1.01, "cpu-low")],
)
def test_the_work_of_one_core_on_several(work: float, expected: str) -> None:
    figures = job(node(cpu_seconds=work * 2 * HOUR))
    assert levels(figures) == {expected: "BAD"}


def test_serial_names_what_is_unused() -> None:
    assert text(job(node(cpu_seconds=2 * HOUR)), "serial") == (
        "one core's work on 16: 6.2 % is 1 core (between 0.85 and 1.01 counts as one); 30 core-h"
        " unused. Ask for --cpus-per-task=1, or start the program with threads."
    )


def test_one_core_is_no_serial_job() -> None:
    assert levels(job(node(cores=1, cpu_seconds=2 * HOUR, running_threads=1))) == {"ok": "ok"}


@pytest.mark.parametrize(("seconds", "expected"), [(14.4, True), (14.5, False)])
def test_a_node_without_work(seconds: float, expected: bool) -> None:
    figures = job(node(), node("n2", cpu_seconds=seconds))
    assert ("cpu-zero" in levels(figures)) is expected


def test_an_idle_job_is_told_once() -> None:
    figures = job(node(cpu_seconds=0.0, cores_first=0.1, cores_last=0.0))
    assert levels(figures) == {"cpu-zero": "BAD"}
    assert "scancel 4711" in text(figures, "cpu-zero")


def test_unused_nodes_are_named() -> None:
    figures = job(node(), node("n2", cpu_seconds=0.0), node("n3", cpu_seconds=None))
    assert text(figures, "cpu-zero").startswith("1 node of 3 did nothing (n2)")


@pytest.mark.parametrize(("samples", "expected"), [(216, "BAD"), (1, None)])
def test_a_node_with_a_few_samples_is_not_called_unused(samples: int, expected: str | None) -> None:
    others = [node(f"n{number}") for number in range(2, 21)]
    figures = job(node(cpu_seconds=0.0, samples=samples), *others)
    assert levels(figures).get("cpu-zero") == expected


@pytest.mark.parametrize(
    ("asked", "cores", "work", "expected"),
    [
        (1, 2, 1.0, {}),  # both threads of the one core that it asked for
        (None, 2, 1.0, {"serial": "BAD"}),
        (2, 2, 1.0, {"serial": "BAD"}),
        (1, 64, 1.0, {"serial": "BAD"}),  # more than threads of a core
        (8, 16, 7.6, {}),
        (8, 16, 3.8, {"cpu-low": "BAD"}),
        (16, 8, 7.6, {}),
    ],
)
def test_threads_that_slurm_adds_are_not_held_against_a_job(
    asked: int | None, cores: int, work: float, expected: dict[str, str]
) -> None:
    used = node(cores=cores, cpu_seconds=work * 2 * HOUR, running_threads=None)
    assert levels(job(used, asked_cores=asked)) == (expected or {"ok": "ok"})


@pytest.mark.parametrize(("elapsed", "expected"), [(300.0, "short"), (301.0, "cpu-zero")])
def test_use_is_judged_after_five_minutes(elapsed: float, expected: str) -> None:
    figures = job(node(cpu_seconds=0.0), elapsed=elapsed, time_limit=400.0)
    assert [*levels(figures)] == [expected]


@pytest.mark.parametrize(("threads", "expected"), [(20.0, None), (20.1, "hint")])
def test_running_threads(threads: float, expected: str | None) -> None:
    assert levels(job(node(running_threads=threads))).get("oversubscribed") == expected


@pytest.mark.parametrize(
    ("load", "is_exclusive", "expected"),
    [(19.2, True, None), (19.3, True, "hint"), (19.3, False, None), (19.3, None, None)],
)
def test_load_of_nodes_of_its_own(
    load: float, is_exclusive: bool | None, expected: str | None
) -> None:
    figures = job(node(load=load), is_exclusive=is_exclusive)
    assert levels(figures).get("oversubscribed") == expected


@pytest.mark.parametrize(("last", "expected"), [(1.52, None), (1.51, "hint")])
def test_work_that_stopped_early(last: float, expected: str | None) -> None:
    assert levels(job(node(cores_last=last))).get("ended-early") == expected


def test_unknown_cpu_use_is_no_good_use() -> None:
    assert levels(job(node(cores=None))) == {"unknown": "unknown"}
    assert levels(job(node(cpu_seconds=None))) == {"unknown": "unknown"}
