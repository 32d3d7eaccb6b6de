"""All services under load, reloads and hostile clients: each demand is a test of its own.

The first part has only legitimate clients. The second part adds a hostile one of each kind.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.effort import IS_NIGHTLY
from tests.support.soak_clients import SoakClients, find_lost
from tests.support.soak_site import SoakSite

_CALM, _HOSTILE = (300.0, 3300.0) if IS_NIGHTLY else (20.0, 50.0)
_RELOAD_EVERY = 10.0
_NOISE = 0.05
"""Seconds within which durations are regarded as equal: others use this machine too."""
_LOG_BYTES = 20_000
"""Maximum of warnings and errors of a program in an hour, whatever the number of attacks."""


class SoakReport(NamedTuple):
    """What the clients and the programs have seen. Memory in MiB: settled, and at the end."""

    calm: SoakClients
    hostile: SoakClients
    lost: list[Any]
    settled: dict[str, float]
    final: dict[str, float]
    logs: dict[str, int]
    reloads: tuple[int, int]
    sinks: set[str]


def _run(site: SoakSite, seconds: float, reloads: int, settled: dict[str, float]) -> int:
    """Reload every ten seconds. Take the memory in the middle. Return the reloads so far."""
    begin = time.monotonic()
    due = begin
    while (now := time.monotonic()) < begin + seconds:
        if now >= due:
            reloads += 1
            site.daemon.reload(site.configuration(reloads))
            due += _RELOAD_EVERY
        if now > begin + seconds / 2 and not settled:
            settled.update(site.resident())
        time.sleep(0.1)
    return reloads


def _count_bytes(log: str) -> int:
    """Return the bytes of warnings and errors."""
    lines = log.splitlines()
    return sum(len(each) for each in lines if each.startswith(("ccagent: w", "ccagent: e")))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoakReport]:
    if IS_NIGHTLY:  # the limit of pytest for one test is below an hour
        faulthandler.dump_traceback_later(_CALM + _HOSTILE + 600, exit=True)
    with SoakSite(tmp_path_factory.mktemp("soak")) as site:
        calm, hostile = SoakClients(site, "c"), SoakClients(site, "h")
        settled: dict[str, float] = {}
        calm.start_legitimate()
        reloads = _run(site, _CALM, 0, {})
        calm.stop()
        sizes = {name: _count_bytes(text) for name, text in site.logs().items()}
        hostile.start_legitimate()
        hostile.start_hostile()
        reloads = _run(site, _HOSTILE, reloads, settled)
        hostile.stop()
        logs = site.logs()
        yield SoakReport(
            calm,
            hostile,
            [*find_lost(site, calm), *find_lost(site, hostile)],
            settled,
            site.resident(),
            {name: _count_bytes(text) - sizes[name] for name, text in logs.items()},
            (reloads, logs["daemon"].count("configuration read again")),
            {"http"} if site.web.requests else set(),
        )


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def test_no_scrape_is_refused_or_cut(report: SoakReport) -> None:
    assert (report.calm.failures["scrape"], report.hostile.failures["scrape"]) == ([], [])


@pytest.mark.parametrize("kind", ["write", "query", "jobstats", "control"])
def test_every_legitimate_request_succeeds(report: SoakReport, kind: str) -> None:
    assert (report.calm.failures[kind], report.hostile.failures[kind]) == ([], [])


@pytest.mark.parametrize("metric", ["soak", "upgraded"])
def test_what_was_acknowledged_is_found(report: SoakReport, metric: str) -> None:
    acknowledged = sum(len(v) for (m, _), v in report.hostile.acknowledged.items() if m == metric)
    assert acknowledged
    assert [each for each in report.lost if each[0] == metric] == []


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="alone only: pytest -n 0")
@pytest.mark.parametrize("kind", ["scrape", "write", "query", "jobstats", "control"])
def test_hostile_clients_slow_nobody_down(report: SoakReport, kind: str) -> None:
    calm, hostile = _p99(report.calm.seconds[kind]), _p99(report.hostile.seconds[kind])
    assert hostile <= max(3 * calm, _NOISE), f"{calm * 1e3:.0f} ms became {hostile * 1e3:.0f} ms"


@pytest.mark.parametrize("program", ["daemon", "metrics", "jobstats", "controls"])
def test_memory_is_flat(report: SoakReport, program: str) -> None:
    settled, final = report.settled[program], report.final[program]
    assert final <= 1.2 * settled + 10, f"{settled:.0f} MiB became {final:.0f}"


@pytest.mark.parametrize("program", ["daemon", "metrics", "jobstats", "controls"])
def test_logs_stay_small(report: SoakReport, program: str) -> None:
    assert report.logs[program] < _LOG_BYTES


def test_invented_nodes_are_limited(report: SoakReport) -> None:
    # 507: in an hour, what is not refused fills the memory for series.
    assert {200, 429} <= report.hostile.statuses <= {200, 429, 507}


def test_every_reload_and_attack_took_place(report: SoakReport) -> None:
    wanted, done = report.reloads
    assert done >= wanted - 1
    assert report.sinks == {"http"}
    assert all(report.hostile.attacks.values())
    assert len(report.hostile.attacks) == 9
