"""Series of a store become figures: gaps stay gaps, and unknown is not 0."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.views.job.figures import JobFacts, JobFigures, JobSeries, NodeHardware
from ccagent.views.job.measuring import measure_job

START = 1_800_000_000
GPU = "00000000:0E:00.0"


def facts(**details: Any) -> JobFacts:
    return JobFacts(
        job="7", cluster="fox", user="eve", state="completed", start=START, stop=START + 600,
        nodes=("n1", "n2"),
        details=StoredJobDetails(name="fit", cores=8, memory=64 << 30, **details),
    )  # fmt: skip


def series(metric: str, *values: float | None, node: str = "n1", card: str = "") -> JobSeries:
    return JobSeries(metric, node, card, START, 60, list(values))


def measure(*found: JobSeries, **details: Any) -> JobFigures:
    return measure_job(facts(**details), found, START + 10_000)


def test_cpu_seconds_are_the_mean_over_the_whole_time() -> None:
    used = measure(series("job_cpu_util", 100.0, 300.0, None, 200.0)).nodes[0]
    assert (used.cpu_seconds, used.cores, used.samples) == (1200.0, 4.0, 3)


def test_a_node_without_series_is_unknown() -> None:
    silent = measure(series("job_cpu_util", 100.0)).nodes[1]
    assert (silent.cpu_seconds, silent.memory_peak, silent.samples) == (None, None, 0)


def test_memory_of_the_programs_and_what_is_charged_are_two_figures() -> None:
    found = measure(
        series("job_mem_rss", 1e9, 3e9, 2e9), series("job_mem_used", 9e9, 8e9),
        series("job_mem_peak", 9e9, 10e9), series("job_mem_limit", 16e9, 16e9),
    ).nodes[0]  # fmt: skip
    assert (found.memory_peak, found.memory_charged, found.memory_limit) == (3e9, 10e9, 16e9)


def test_the_limit_is_that_of_the_allocation_where_no_group_has_one() -> None:
    assert measure(series("job_mem_rss", 1e9)).nodes[0].memory_limit == 32 << 30


def test_the_state_is_in_words_of_slurm() -> None:
    found = measure_job(JobFacts(job="7", state="cancelled by 5002", start=START), [], START + 60)
    assert (found.state, found.is_running, found.elapsed) == ("CANCELLED", True, 60.0)


def test_cores_may_differ_by_node() -> None:
    found = measure(cpus={"n1": 6})
    assert [node.cores for node in found.nodes] == [6, 4.0]


@pytest.mark.parametrize(
    ("values", "period", "expected"),
    [((1.0,) * 10, 60, 9), ((1.0, None) * 5, 120, 4), ((1.0,), 0, 0), ((None,), 0, 0)],
)
def test_the_period_is_that_of_the_samples(
    values: tuple[float | None, ...], period: int, expected: int
) -> None:
    found = measure(series("job_cpu_util", *values))
    assert (found.period, found.expected_samples) == (period, expected)


def test_cores_in_use_are_those_of_all_nodes_at_a_time() -> None:
    both = [series("job_cpu_util", *values, node=node) for node, values in (
        ("n1", [800.0] * 18 + [900.0, 1e4] + [50.0] * 5), ("n2", [400.0] * 20 + [5.0] * 5),
    )]  # fmt: skip
    used = measure_job(structs.replace(facts(), stop=START + 1500), both, START + 1500).use
    assert used is not None
    assert (used.peak, used.high, used.quantile) == (104.0, 104.0, 0.99)
    assert (used.serial, used.quiet, used.idle) == (0.2, 300.0, 0.0)
    assert used.quiet_cores == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("busy", "cores", "expected"),
    [(5, 4.0, (0.95, 2.0)), (5, 4.1, (0.99, 4.1)), (1, 8.0, (0.95, 2.0)), (1, 12.1, (1.0, 12.1))],
)
def test_a_request_makes_the_job_hardly_longer(
    busy: int, cores: float, expected: tuple[float, float]
) -> None:
    """Of 100 samples with 2 cores, `busy` have more."""
    row = series("job_cpu_util", *[200.0] * (100 - busy), *[100 * cores] * busy)
    used = measure(row).use
    assert used is not None
    assert (used.quantile, used.high) == expected


def test_a_node_that_lacks_a_sample_makes_no_quiet_time() -> None:
    used = measure(
        series("job_cpu_util", *[400.0] * 10),
        series("job_cpu_util", *[400.0] * 5, *[None] * 4, 400.0, node="n2"),
    ).use
    assert used is not None
    assert (used.quiet, used.high) == (0.0, 8.0)


@pytest.mark.parametrize(
    ("end", "quiet"),
    [((0.0, 0.0), 120), ((0.0, 900.0, 0.0), 180), ((0.0, 900.0, 900.0, 0.0), 60), ((900.0,), 0)],
)
def test_a_single_blip_does_not_end_a_quiet_time(end: tuple[float, ...], quiet: int) -> None:
    row = [*[800.0] * (10 - len(end)), *end]
    used = measure(series("job_cpu_util", *row)).use
    assert used is not None
    assert used.quiet == quiet


def test_cards_are_those_of_the_event() -> None:
    found = measure(
        series("acc_utilization", *[None] * 6, 50.0, 0.0, None, 0.0, card=GPU),
        series("acc_mem_used", 10e9, 20e9, card=GPU), series("acc_mem_share", 12.5, 25.0, card=GPU),
        cards={"n1": [GPU, "00000000:0F:00.0"]}, gpus=2,
    )  # fmt: skip
    one, other = found.nodes[0].cards
    assert (one.utilization, one.samples) == (50 / 3, 3)
    assert (one.idle_at_end, one.memory_peak, one.memory_total) == (180.0, 20e9, 80e9)
    assert other.utilization is None


def test_the_only_card_may_be_found_by_its_processes() -> None:
    found = measure(
        series("job_gpu_util", *[None] * 7, 60.0, 30.0),
        series("job_gpus_idle", *[None] * 6, 1.0, 0.0, 0.0, 1.0), gpus=1,
    )  # fmt: skip
    (card,) = found.nodes[0].cards
    assert (card.utilization, card.samples) == (22.5, 4)
    assert card.idle_at_end == 60.0


def test_an_impossible_start_of_a_series_takes_no_memory() -> None:
    used = series("job_gpu_util", 40.0, 60.0)
    idle = structs.replace(series("job_gpus_idle", 1.0), start=0, step=1)
    (card,) = measure(used, idle, gpus=1).nodes[0].cards
    assert card.utilization == 50.0


def test_a_share_of_almost_nothing_tells_no_size_of_a_card() -> None:
    found = [series("acc_mem_used", 1e9, card=GPU), series("acc_mem_share", 5e-324, card=GPU)]
    (card,) = measure(*found, cards={"n1": [GPU]}).nodes[0].cards
    assert (card.memory_peak, card.memory_total) == (1e9, None)


def test_an_only_card_that_nothing_tells_of_is_unknown() -> None:
    one = structs.replace(facts(gpus=1), nodes=("n1",))
    (card,) = measure_job(one, [], START + 10_000).nodes[0].cards
    assert card.utilization is None


def test_the_only_card_of_two_nodes_is_on_the_one_that_sends_its_use() -> None:
    found = measure(series("job_gpus_idle", *[0.0] * 10), series("job_gpu_util", *[70.0] * 10),
                    series("job_cpu_util", 90.0, node="n2"), gpus=1)  # fmt: skip
    assert [len(node.cards) for node in found.nodes] == [1, 0]
    assert found.gpu_count == 1


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ((90.0, *[0.0] * 9), 540.0),
        ((90.0, *[None] * 5, *[0.0] * 4), 180.0),  # what was in the gap is not known
        ((90.0, 0.0, *[None] * 5, 0.0, 0.0, 0.0), 120.0),
        ((90.0, *[0.0] * 4, *[None] * 5), 0.0),  # nor what was at the end
        ((*[0.0] * 9, 1.0), 0.0),
    ],
)
def test_a_card_is_idle_as_long_as_every_sample_says_so(
    values: tuple[float | None, ...], idle: float
) -> None:
    found = measure(series("acc_utilization", *values, card=GPU), cards={"n1": [GPU]}, gpus=1)
    assert found.nodes[0].cards[0].idle_at_end == idle


@pytest.mark.parametrize(
    ("values", "coverage"),
    [((50.0,) * 9, 100), ((50.0, 50.0, 50.0), 100 / 3), ((50.0, None) * 5, 125), ((0.0,), 0)],
)
def test_a_card_has_samples_of_its_own_period(
    values: tuple[float | None, ...], coverage: float
) -> None:
    found = measure(series("acc_utilization", *values, card=GPU), cards={"n1": [GPU]}, gpus=1)
    assert found.nodes[0].cards[0].coverage == pytest.approx(coverage)


def test_load_counts_on_nodes_of_its_own() -> None:
    load = series("cpu_load", 9.0, 11.0)
    assert measure(load).nodes[0].load is None
    assert measure(load, is_exclusive=True).nodes[0].load == 10.0


def test_hardware_is_known_to_the_configuration() -> None:
    hardware = {"n2": NodeHardware(cores=64, memory=256e9, cards=4)}
    found = measure_job(facts(), [], START, hardware).nodes
    assert (found[0].total_cores, found[1].total_cores, found[1].total_cards) == (None, 64, 4)
