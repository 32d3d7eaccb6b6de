"""Rules for GPUs and for interactive sessions, at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ccagent.config.duration import Duration
from ccagent.views.amounts import GB
from ccagent.views.job.figures import CoreUse, JobFigures
from ccagent.views.job.mounts import JobMount, JobMounts
from tests.unit.views.job.support import HOUR, card, job, levels, node, report, text

TOTAL = 16 * 2 * HOUR


def gpu_job(*utilizations: float | None, **changes: Any) -> JobFigures:
    """Return a job of these cards; one of 0 was always at 0."""
    cards = tuple(
        card(str(n), utilization=one, samples=0 if one is None else 250)
        for n, one in enumerate(utilizations)
    )
    return job(node(cards=cards, cpu_seconds=0.5 * TOTAL), **changes)


def test_a_card_that_was_always_at_0_is_bad() -> None:
    assert levels(gpu_job(42.0, 0.0)) == {"gpu-idle": "BAD"}
    assert text(gpu_job(42.0, 0.0), "gpu-idle") == (
        "GPU 1 wasn't used: 0 % on average of 250 samples (2:00:00), up to 2.1 % counts as none."
        " Ask for 1 GPU (--gpus=1), which frees 2 GPU-h; the run time stays. Or make the program"
        " use all."
    )
    assert "All 2 GPUs weren't used" in text(gpu_job(0.0, 0.0), "gpu-idle")
    assert "leave out --gpus" in text(gpu_job(0.0), "gpu-idle")


@pytest.mark.parametrize(
    ("use", "expected"), [((1.0,), "gpu-idle"), ((1.1,), "gpu-low"), ((60.0, 3.0), "gpu-idle"),
                          ((60.0, 3.1), "ok"), ((16.0, 1.0), "gpu-idle")],
)  # fmt: skip
def test_almost_no_use_alone_and_next_to_its_peers(use: tuple[float, ...], expected: str) -> None:
    assert list(levels(gpu_job(*use))) == [expected]


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
    for first, use in ((50.0, 0.0), (10.0, 10.0)):
        thin = card("1", utilization=use, coverage=coverage)
        cards = (card("0", utilization=first), thin)
        found = levels(job(node(cards=cards, cpu_seconds=0.5 * TOTAL)))
        assert [*found.values()] == [expected]


def test_a_card_that_is_idle_at_the_end_is_bad_whatever_was_before() -> None:
    thin = card(utilization=0.0, coverage=60.0, idle_at_end=4000.0)
    assert levels(job(node(cards=(thin,))))["gpu-idle"] == "BAD"


def test_work_that_goes_from_the_cores_to_a_gpu_has_not_ended() -> None:
    use = CoreUse(peak=16, high=15.2, quiet=HOUR)
    assert levels(job(node(cards=(card(),)), use=use)) == {"ok": "ok"}


@pytest.mark.parametrize(
    ("cpu", "high", "expected"),
    [(0.85 * 16, 16, "gpu-input"), (0.84 * 16, 16, "gpu-low"), (1.0, 1.3, "gpu-input"),
     (1.0, 1.4, "gpu-low"), (0.7, 1.0, "gpu-low")],
)  # fmt: skip
def test_cores_that_prepare_the_input(cpu: float, high: float, expected: str) -> None:
    slow = node(cpu_seconds=cpu * 2 * HOUR, cards=(card(utilization=10.0),))
    figures = job(slow, use=CoreUse(peak=high, high=high))
    assert levels(figures) == {expected: "BAD"}


def test_a_gpu_that_waits_for_a_mount() -> None:
    mount = JobMount(point="/data", type="nfs4", source="s", reads=10**6, read=10**9, busy=7e4)
    found = report(gpu_job(10.0), JobMounts(mounts=(mount,)))
    assert [one.rule for one in found.findings] == ["gpu-input"]
    assert "it waited for /data (nfs4): 70 ms a read" in found.findings[0].text


def test_a_job_with_a_part_of_a_gpu_is_not_judged_as_one_without() -> None:
    low = node(cpu_seconds=1.0 * 2 * HOUR)
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


def session(hours: float = 8.0, *, use: CoreUse | None = None, **changes: Any) -> JobFigures:
    """Return a session of 16 cores, in use by default."""
    elapsed = hours * HOUR
    return job(
        node(cpu_seconds=0.01 * elapsed), name="sys/dashboard/sys/jupyter", elapsed=elapsed,
        time_limit=24 * HOUR, use=use or CoreUse(peak=16, high=0.1), **changes,
    )  # fmt: skip


def test_a_low_use_of_a_session_is_expected() -> None:
    assert levels(session()) == {"session": "ok"}
    assert text(session(), "session").startswith("an interactive session (it is named sys/")


@pytest.mark.parametrize(
    ("name", "terminal", "expected"),
    [("sys/dashboard/sys/jupyter", None, True), ("ood-sys-dashboard-rstudio", None, True),
     ("ondemand/sys/dashboard/batch_connect/sys/x", False, True), ("bash", None, True),
     ("bash", False, False), ("fit", True, True), ("fit", False, False), ("fit", None, False),
     ("interactive", None, True), ("jupyter-lab", None, True), ("nosys/dashboards", None, False)],
)  # fmt: skip
def test_sessions_by_name_and_terminal(name: str, terminal: bool | None, expected: bool) -> None:
    found = levels(job(node(cpu_seconds=2 * HOUR), name=name, has_terminal=terminal))
    assert found == ({"session": "ok"} if expected else {"serial": "BAD"})


@pytest.mark.parametrize(("idle", "expected"), [(1.99, "ok"), (2.0, "hint")])
def test_hours_without_anybody(idle: float, expected: str) -> None:
    use = CoreUse(peak=16, high=16, idle=idle * HOUR)
    assert levels(session(use=use)) == {"session": expected}
    running = session(use=use, state="RUNNING", stop=None)
    assert ("End it (scancel 4711)" in text(running, "session")) is (expected == "hint")


@pytest.mark.parametrize(("peak", "expected"), [(4.0, "hint"), (4.1, "ok")])
def test_a_session_with_many_cores(peak: float, expected: str) -> None:
    assert levels(session(use=CoreUse(peak=peak, high=peak))) == {"session": expected}


@pytest.mark.parametrize(("hours", "expected"), [(8.0, "ok"), (8.01, "BAD")])
def test_sessions_with_gpus_have_eight_hours(hours: float, expected: str) -> None:
    figures = gpu_job(5.0, name="interactive", elapsed=hours * HOUR, time_limit=10 * HOUR)
    assert levels(figures) == {"session": expected}


def test_memory_of_a_session_is_judged_by_its_limit_alone() -> None:
    small = job(node(memory_peak=GB), name="jupyter")
    assert levels(small) == {"session": "ok"}
    assert levels(job(node(memory_peak=63 * GB), name="jupyter")) == {"mem-limit": "hint"}


@pytest.mark.parametrize(("used", "expected"), [(72.0, "BAD"), (72.1, None)])
def test_jobs_that_fill_gpu_memory_can_be_spared(used: float, expected: str | None) -> None:
    slow = card(utilization=10.0, memory_peak=used * GB)
    figures = job(node(cards=(slow,), cpu_seconds=0.5 * TOTAL))
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


def test_a_job_with_all_cards_of_a_node_may_have_all_cores() -> None:
    cards = (card("0"), card("1"))
    assert "gpu-share" not in levels(job(node(cores=32, total_cards=2, cards=cards)))


def test_cards_of_several_nodes_are_named_with_their_nodes() -> None:
    idle = card("3", utilization=0.0)
    figures = job(node(cards=(card(),)), node("n2", cards=(idle,)))
    assert text(figures, "gpu-idle").startswith("GPU 3 of n2 wasn't used")


def test_windows_are_settings() -> None:
    figures = job(node(cards=(card(idle_at_end=700.0),)))
    assert levels(figures, gpu_idle_window=Duration("10m")) == {"gpu-idle": "BAD"}


@pytest.mark.parametrize(("idle", "expected"), [(3599.0, "time"), (3600.0, "gpu-idle")])
def test_more_time_does_not_help_an_idle_gpu(idle: float, expected: str) -> None:
    figures = job(node(cards=(card(idle_at_end=idle),)), state="TIMEOUT")
    assert levels(figures) == {expected: "BAD"}


def test_a_part_of_a_gpu_may_work_while_the_cores_are_quiet() -> None:
    use = CoreUse(peak=16, high=15.2, quiet=HOUR)
    assert levels(job(state="TIMEOUT", has_gpu_share=True, use=use)) == {"time": "BAD"}


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
