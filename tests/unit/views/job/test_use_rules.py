"""Rules about CPUs and GPUs, at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ccagent.config.duration import Duration
from ccagent.views.amounts import GB
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


def gpu_job(*utilizations: float | None, **changes: Any) -> JobFigures:
    """Return a job of these cards; one of 0 was always at 0."""
    cards = tuple(
        card(str(n), utilization=one, peak_utilization=one, samples=0 if one is None else 250)
        for n, one in enumerate(utilizations)
    )
    return job(node(cards=cards), **changes)


def test_a_card_that_was_always_at_0_is_bad() -> None:
    assert levels(gpu_job(42.0, 0.0)) == {"gpu-idle": "BAD"}
    assert text(gpu_job(42.0, 0.0), "gpu-idle") == (
        "GPU 1 wasn't used in any of 250 samples (2:00:00; limit 5m). Ask for 1 GPU (--gpus=1),"
        " or make the program use all."
    )
    assert "All 2 GPUs weren't used" in text(gpu_job(0.0, 0.0), "gpu-idle")
    assert "leave out --gpus" in text(gpu_job(0.0), "gpu-idle")


def test_a_card_with_one_busy_sample_was_used() -> None:
    figures = job(node(cards=(card(), card("1", utilization=30.0, peak_utilization=1.0))))
    assert levels(figures) == {"ok": "ok"}


@pytest.mark.parametrize(("elapsed", "expected"), [(300, False), (301, True)])
def test_idle_cards_need_300_seconds(elapsed: float, expected: bool) -> None:
    assert ("gpu-idle" in levels(gpu_job(0.0, elapsed=elapsed))) is expected


@pytest.mark.parametrize(("idle", "expected"), [(3599, False), (3600, True)])
def test_a_card_idle_for_the_last_hour_is_bad(idle: float, expected: bool) -> None:
    figures = job(node(cards=(card(idle_at_end=idle),)))
    assert ("gpu-idle" in levels(figures)) is expected
    if expected:
        assert "at 0 % for the last 1:00:00 (limit 60m), idle since 1:00:00" in text(
            figures, "gpu-idle"
        )


def test_a_card_that_cannot_say_its_use_is_unknown_and_not_idle() -> None:
    assert levels(gpu_job(None)) == {"gpu-unknown": "unknown"}
    assert levels(gpu_job(60.0, None)) == {"gpu-unknown": "unknown"}


@pytest.mark.parametrize(("coverage", "expected"), [(90.0, "BAD"), (89.9, "unknown")])
def test_a_few_samples_of_a_card_make_it_neither_idle_nor_low(
    coverage: float, expected: str
) -> None:
    for use in (0.0, 10.0):
        thin = card("1", utilization=use, peak_utilization=use, coverage=coverage)
        found = levels(job(node(cards=(card("0", utilization=use), thin))))
        assert [*found.values()] == [expected]


def test_a_card_that_is_idle_at_the_end_is_bad_whatever_was_before() -> None:
    thin = card(utilization=0.0, peak_utilization=0.0, coverage=60.0, idle_at_end=4000.0)
    assert levels(job(node(cards=(thin,))))["gpu-idle"] == "BAD"


def test_work_that_goes_from_the_cores_to_a_gpu_has_not_ended() -> None:
    assert levels(job(node(cores_last=0.9, cards=(card(),)))) == {"ok": "ok"}


def test_a_job_with_a_part_of_a_gpu_is_not_judged_as_one_without() -> None:
    low = node(cpu_seconds=1.0 * 2 * HOUR, running_threads=None)
    assert levels(job(low)) == {"serial": "BAD"}
    assert levels(job(low, has_gpu_share=True)) == {"ok": "ok"}
    shared = node(cards=(card(utilization=10.0),))
    assert levels(job(shared, has_gpu_share=True)) == {"ok": "ok"}


def test_a_job_whose_cards_nothing_names_is_unknown() -> None:
    assert levels(job(gpus=2)) == {"gpu-unknown": "unknown"}


@pytest.mark.parametrize(
    ("mean", "expected"), [(15.0, "BAD"), (15.1, "hint"), (24.9, "hint"), (25.0, None)]
)
def test_low_use_of_gpus(mean: float, expected: str | None) -> None:
    assert levels(gpu_job(mean)).get("gpu-low") == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "hint"),
        ({"sm_active": 20.1}, None),
        ({"sm_active": None}, None),
        ({"utilization": 79.9}, None),
        ({"power": 351.0}, None),
        ({"power": None}, "hint"),
    ],
)
def test_busy_cards_with_few_sms(changes: dict[str, Any], expected: str | None) -> None:
    busy = card(utilization=99.0, sm_active=4.0, power=180.0, power_limit=700.0)
    busy = structs.replace(busy, **changes)
    assert levels(job(node(cards=(busy,)))).get("gpu-few-sms") == expected


def test_few_sms_and_little_power_are_named() -> None:
    busy = card(utilization=99.0, sm_active=4.0, power=180.0, power_limit=700.0)
    assert text(job(node(cards=(busy,))), "gpu-few-sms") == (
        "GPU 0: 99 % of the time with a kernel, but 4 % of the SMs busy (up to 20 % is few) and"
        " 180 of 700 W. Larger batches or several processes per GPU (MPS) use more of it; a MIG"
        " instance may be enough."
    )


@pytest.mark.parametrize(("hours", "expected"), [(8.0, None), (8.01, "BAD")])
def test_interactive_jobs_have_eight_hours(hours: float, expected: str | None) -> None:
    figures = gpu_job(
        5.0, name="interactive-shell", elapsed=hours * HOUR, time_limit=10 * HOUR
    )  # fmt: skip
    assert levels(figures).get("gpu-low") == expected


@pytest.mark.parametrize(("used", "expected"), [(72.0, "BAD"), (72.1, None)])
def test_jobs_that_fill_gpu_memory_can_be_spared(used: float, expected: str | None) -> None:
    figures = job(node(cards=(card(utilization=10.0, memory_peak=used * GB),)))
    assert levels(figures)["gpu-low"] == "BAD"
    assert levels(figures, gpu_low_spare_memory=90.0).get("gpu-low") == expected


def test_an_idle_card_replaces_low_use() -> None:
    assert levels(gpu_job(20.0, 0.0)) == {"gpu-idle": "BAD"}


@pytest.mark.parametrize(("cores", "expected"), [(12.0, None), (12.1, "hint")])
def test_cores_of_a_gpu_against_the_share_of_the_node(cores: float, expected: str | None) -> None:
    figures = job(
        node(cores=cores, total_cores=32, total_memory=512 * GB, total_cards=4, cards=(card(),))
    )
    assert levels(figures).get("gpu-share") == expected


@pytest.mark.parametrize(("memory", "expected"), [(1.04, None), (1.05, "hint")])
def test_memory_of_a_gpu_against_the_share_of_the_node(memory: float, expected: str | None) -> None:
    figures = job(
        node(cores=8, cpu_seconds=8 * 2 * HOUR, total_cards=4, total_memory=400 * GB,
             memory_limit=memory * 100 * GB, memory_peak=80 * GB, cards=(card(),)),
    )  # fmt: skip
    assert levels(figures, mem_margin=0.0).get("gpu-share") == expected


def test_a_job_with_all_cards_of_a_node_may_have_all_cores() -> None:
    cards = (card("0"), card("1"))
    assert "gpu-share" not in levels(job(node(cores=32, total_cards=2, cards=cards)))


def test_cards_of_several_nodes_are_named_with_their_nodes() -> None:
    idle = card("3", utilization=0.0, peak_utilization=0.0)
    figures = job(node(cards=(card(),)), node("n2", cards=(idle,)))
    assert text(figures, "gpu-idle").startswith("GPU 3 of n2 wasn't used")


def test_windows_are_settings() -> None:
    figures = job(node(cards=(card(idle_at_end=700.0),)))
    assert levels(figures, gpu_idle_window=Duration("10m")) == {"gpu-idle": "BAD"}
