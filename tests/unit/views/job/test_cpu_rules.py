"""Rules about cores and nodes, at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.views.job.figures import CoreUse, JobFigures
from ccagent.views.job.mounts import JobMount, JobMounts, JobNetwork
from tests.unit.views.job.support import HOUR, card, job, levels, node, report, text

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
        "12 % CPU use of 32 cores; below 65 % is BAD. Find out what it waits for: `ccagent kernel"
        " load --io-time` and the agent jobio measure files and network. Ask for 4 cores (--ntasks"
        " or --cpus-per-task): in 95 % of the time at most 3.84 were in use. That frees 56 core-h;"
        " the run time stays within 5 %."
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
        "one core's work on 16: 1 core, between 0.85 and 1.01 counts as one (6.2 % CPU use of 16"
        " cores; below 65 % is BAD). Start the program with threads. Ask for 1 core"
        " (--cpus-per-task=1): in 95 % of the time at most 1 were in use. That frees 30 core-h; the"
        " run time stays within 5 %."
    )


def test_one_core_is_no_serial_job() -> None:
    assert levels(job(node(cores=1, cpu_seconds=2 * HOUR))) == {"ok": "ok"}


def test_a_part_of_the_only_core_is_no_serial_job() -> None:
    figures = job(node(cores=1, cpu_seconds=0.6 * 2 * HOUR))
    assert levels(figures, serial_from=0.5) == {"cpu-low": "BAD"}


@pytest.mark.parametrize(("seconds", "expected"), [(72.0, "cpu-zero"), (72.1, "cpu-low")])
def test_a_job_without_work(seconds: float, expected: str) -> None:
    assert levels(job(node(cpu_seconds=seconds))) == {expected: "BAD"}


@pytest.mark.parametrize(("share", "expected"), [(0.05, "idle-nodes"), (0.0501, "one-rank")])
def test_a_node_next_to_the_busiest_of_its_job(share: float, expected: str) -> None:
    other = node("n2", cpu_seconds=share * 0.95 * TOTAL)
    assert levels(job(node(), other)) == {expected: "BAD"}


def test_an_idle_job_is_told_once() -> None:
    figures = job(node(cpu_seconds=0.0))
    assert levels(figures) == {"cpu-zero": "BAD"}
    assert "scancel" not in text(figures, "cpu-zero")
    running = job(node(cpu_seconds=0.0), state="RUNNING", stop=None)
    assert "or end it (scancel 4711)" in text(running, "cpu-zero")


def test_unused_nodes_are_named() -> None:
    figures = job(node(), node("n2", cpu_seconds=0.0), node("n3", cpu_seconds=None))
    assert text(figures, "idle-nodes").startswith("1 node of 3 did nothing (n2)")
    assert "--nodes=2), which frees 32 core-h" in text(figures, "idle-nodes")


@pytest.mark.parametrize(("samples", "expected"), [(216, "BAD"), (1, None)])
def test_a_node_with_a_few_samples_is_not_called_unused(samples: int, expected: str | None) -> None:
    others = [node(f"n{number}") for number in range(2, 21)]
    figures = job(node(cpu_seconds=0.0, samples=samples), *others)
    assert levels(figures).get("idle-nodes") == expected


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
    used = node(cores=cores, cpu_seconds=work * 2 * HOUR)
    assert levels(job(used, asked_cores=asked)) == (expected or {"ok": "ok"})


@pytest.mark.parametrize(("elapsed", "expected"), [(300.0, "short"), (301.0, "cpu-zero")])
def test_use_is_judged_after_five_minutes(elapsed: float, expected: str) -> None:
    figures = job(node(cpu_seconds=0.0), elapsed=elapsed, time_limit=400.0)
    assert [*levels(figures)] == [expected]


@pytest.mark.parametrize(
    ("load", "is_exclusive", "expected"),
    [(19.2, True, None), (19.3, True, "hint"), (19.3, False, None), (19.3, None, None)],
)
def test_load_of_nodes_of_its_own(
    load: float, is_exclusive: bool | None, expected: str | None
) -> None:
    figures = job(node(load=load), is_exclusive=is_exclusive)
    assert levels(figures).get("oversubscribed") == expected


@pytest.mark.parametrize(("quiet", "expected"), [(0.19, None), (0.2, "hint")])
def test_work_that_stopped_early(quiet: float, expected: str | None) -> None:
    use = CoreUse(peak=16, high=15.2, quiet=quiet * 2 * HOUR, quiet_cores=0.5)
    assert levels(job(use=use)).get("ended-early") == expected


def test_a_time_limit_that_a_hung_job_reached_is_not_too_short() -> None:
    use = CoreUse(peak=16, high=15.2, quiet=HOUR, quiet_cores=0.0)
    figures = job(node(cpu_seconds=0.5 * TOTAL), state="TIMEOUT", use=use)
    assert levels(figures) == {"ended-early": "BAD"}
    assert "More time does not help" in text(figures, "ended-early")


def mounts(**amounts: Any) -> JobMounts:
    return JobMounts(mounts=(JobMount(point="/data", type="nfs4", source="s", **amounts),))


LOW = job(node(cpu_seconds=4 * 2 * HOUR))
"""A job that uses 4 of 16 cores."""


@pytest.mark.parametrize(("tasks", "expected"), [(1.71, "cpu-low"), (1.72, "wait-mount")])
def test_tasks_that_wait_for_a_mount(tasks: float, expected: str) -> None:
    found = mounts(reads=int(7.2e6), read=int(1e12), busy=tasks * 2 * HOUR)
    assert levels(LOW, found) == {expected: "BAD"}
    if expected == "wait-mount":
        assert (
            report(LOW, found)
            .findings[0]
            .text.startswith(
                "it waited for /data (nfs4): 1.72 ms a read or write, 30 % of its tasks' time"
            )
        )


def test_calls_at_the_speed_of_memory_are_no_wait() -> None:
    found = mounts(reads=int(7.2e6), read=int(4 * 2 * HOUR * 1e9), busy=4 * 2 * HOUR)
    assert levels(LOW, found) == {"cpu-low": "BAD"}
    assert "did not wait for files" in report(LOW, found).findings[0].text


@pytest.mark.parametrize(("pressure", "expected"), [(29.9, "cpu-low"), (30.0, "wait-io")])
def test_pressure_of_io(pressure: float, expected: str) -> None:
    assert levels(job(node(cpu_seconds=4 * 2 * HOUR, io_pressure=pressure))) == {expected: "BAD"}


@pytest.mark.parametrize(("rate", "expected"), [(199e6, "cpu-low"), (200e6, "wait-io")])
def test_bytes_whose_time_is_unknown(rate: float, expected: str) -> None:
    figures = job(node(cpu_seconds=4 * 2 * HOUR, io_read=rate * 2 * HOUR))
    assert levels(figures) == {expected: "BAD"}
    assert levels(LOW, mounts(read=int(rate * 2 * HOUR))) == {expected: "BAD"}


@pytest.mark.parametrize(("rate", "expected"), [(999, "cpu-low"), (1000, "wait-metadata")])
def test_metadata_operations(rate: int, expected: str) -> None:
    assert levels(LOW, mounts(metadata=int(rate * 2 * HOUR))) == {expected: "BAD"}


@pytest.mark.parametrize(
    ("protocol", "loopback", "rate", "expected"),
    [("tcp", False, 99, "cpu-low"), ("tcp", False, 100, "wait-network"),
     ("ports", False, 100, "wait-network"), ("tcp", True, 500, "cpu-low")],
)  # fmt: skip
def test_traffic_of_the_network(protocol: str, loopback: bool, rate: int, expected: str) -> None:
    way = JobNetwork(protocol=protocol, is_loopback=loopback, received=int(rate * 1e6 * 2 * HOUR))
    assert levels(LOW, JobMounts(network=(way,))) == {expected: "BAD"}


def test_waiting_is_no_fault_of_a_job_that_uses_its_cores() -> None:
    found = mounts(reads=10**6, read=10**13, busy=1e6, metadata=10**9)
    assert levels(job(), found) == {"ok": "ok"}


@pytest.mark.parametrize(("other", "expected"), [(0.5, "one-rank"), (0.51, "cpu-low")])
def test_one_full_node_and_others_that_wait(other: float, expected: str) -> None:
    first = node(cpu_seconds=0.8 * TOTAL)
    others = [node(name, cpu_seconds=other * 0.8 * TOTAL) for name in ("n2", "n3")]
    assert list(levels(job(first, *others))) == [expected]


@pytest.mark.parametrize(("serial", "expected"), [(0.19, "cpu-low"), (0.2, "serial-part")])
def test_a_serial_part(serial: float, expected: str) -> None:
    use = CoreUse(peak=16, high=16, serial=serial)
    assert list(levels(job(node(cpu_seconds=0.6 * TOTAL), use=use))) == [expected]


def test_unknown_cpu_use_is_no_good_use() -> None:
    assert levels(job(node(cores=None))) == {"unknown": "unknown"}
    assert levels(job(node(cpu_seconds=None))) == {"unknown": "unknown"}
