"""Sums of usage, compared with an oracle that adds up job by job."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.settings import UsageSettings
from ccagent.stores.metrics.usage.job_energy import NodeJobEnergy
from ccagent.stores.metrics.usage.table import UsageQuery, UsageSum, UsageTable, open_usage
from tests.support.effort import IS_NIGHTLY

NOW = 1_800_000_000
MONTH = 30 * 86400
SETTINGS = UsageSettings(pue=1.3, price=0.25)


class SimulatedJob(NamedTuple):
    """A job; energies: J, distance down and up, by node. Distances may be unknown."""

    job: StoredJob
    energies: dict[str, tuple[int, int | None, int | None]]
    factor: float | None


def simulate(count: int, seed: int) -> list[SimulatedJob]:
    """Return jobs of a month: some without energy, interval or factor."""
    chance = random.Random(seed)
    jobs: list[SimulatedJob] = []
    for number in range(count):
        names = {f"n{chance.randrange(100)}" for _ in range(chance.choice([1, 1, 2, 8]))}
        stop = NOW - chance.randrange(MONTH)
        job = StoredJob(
            "fox" if chance.random() < 0.8 else "hen", str(number), f"u{chance.randrange(40)}",
            "completed", stop - chance.randrange(1, 86400), stop, tuple(sorted(names)),
            details=StoredJobDetails(account=f"p{chance.randrange(12)}"),
        )  # fmt: skip
        energies: dict[str, tuple[int, int | None, int | None]] = {}
        for name in sorted(names) if chance.random() < 0.95 else ():
            joules = chance.randrange(1, 50_000_000)
            below, above = chance.randrange(joules // 3 + 1), chance.randrange(joules // 2 + 1)
            is_bounded = chance.random() < 0.9
            energies[name] = (joules, below, above) if is_bounded else (joules, None, None)
        jobs.append(SimulatedJob(job, energies, chance.choice([None, 20.0, 55.5, 400.0])))
    return jobs


def store(table: UsageTable, jobs: list[SimulatedJob]) -> None:
    for one in jobs:
        uses = {
            name: NodeJobEnergy({("cpu", "active"): float(joules)}, {}, below, above)
            for name, (joules, below, above) in one.energies.items()
        }
        table.keep(one.job, uses, one.factor)


def oracle(jobs: list[SimulatedJob]) -> dict[str, float | None]:
    """Return the sums over jobs, added up one by one in exact numbers."""
    joules = Fraction(0)
    weighted = known = Fraction(0)
    nodes: defaultdict[tuple[str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0)] * 3)
    for one in jobs:
        for name, (energy, below, above) in one.energies.items():
            joules += energy
            place = one.job.cluster, name
            added = (energy, below or 0, above or 0)
            nodes[place] = [old + new for old, new in zip(nodes[place], added, strict=True)]
            if one.factor is not None:
                known += energy
                weighted += energy * Fraction(one.factor)
    ends: list[float] = []
    for side in (1, 2):
        common = Fraction(SETTINGS.common_error)
        alone = [max(Fraction(0), sums[side] - common * sums[0]) for sums in nodes.values()]
        half = float(common * joules) + math.sqrt(float(sum(each * each for each in alone)))
        ends.append(min(half, float(sum(sums[side] for sums in nodes.values()))))
    return {
        "joules": float(joules),
        "least": max(0.0, float(joules) - ends[0]),
        "most": float(joules) + ends[1],
        "grams": float(weighted / 3_600_000) * SETTINGS.pue if known else None,
        "cost": float(joules / 3_600_000) * SETTINGS.pue * SETTINGS.price if nodes else None,
        "jobs": len(jobs),
        "measured": sum(bool(one.energies) for one in jobs),
        "bounded": sum(
            bool(one.energies) and all(each[1] is not None for each in one.energies.values())
            for one in jobs
        ),
    }


def compare(found: UsageSum, jobs: list[SimulatedJob]) -> None:
    for name, expected in oracle(jobs).items():
        is_known = expected is not None
        wanted = pytest.approx(expected, rel=1e-9) if is_known else None
        assert getattr(found, name) == wanted, (found.key, name)


@pytest.mark.slow
def test_a_month_of_jobs_equals_the_oracle(tmp_path: Path) -> None:
    jobs = simulate(10_000 if IS_NIGHTLY else 1_000, 35)
    table = UsageTable(str(tmp_path / "usage.sqlite"))
    store(table, jobs)
    for by, each in (("project", ""), ("user", "day"), ("cluster", "month")):
        groups: defaultdict[tuple[str, str], list[SimulatedJob]] = defaultdict(list)
        for one in jobs:
            key = {"project": one.job.details.account, "user": one.job.user,
                   "cluster": one.job.cluster}[by]  # fmt: skip
            form = {"": "", "day": "%Y-%m-%d", "month": "%Y-%m"}[each]
            period = datetime.fromtimestamp(one.job.stop or 0).astimezone().strftime(form)
            groups[key, period].append(one)
        rows, total = table.sums(UsageQuery(NOW - MONTH, NOW + 1, by, each), SETTINGS)
        assert {(row.key, row.period) for row in rows} == groups.keys()
        for row in rows:
            compare(row, groups[row.key, row.period])
        compare(total, jobs)
    table.close()


def test_the_interval_of_a_node_is_added_that_of_nodes_is_not(tmp_path: Path) -> None:
    table = UsageTable(str(tmp_path / "usage.sqlite"))
    settings = UsageSettings(common_error=0.0)
    for number in range(4):
        job = StoredJob("fox", str(number), "eve", "completed", 1, 2, ())
        node = "n1" if number < 2 else f"n{number}"
        table.keep(job, {node: NodeJobEnergy({("cpu", "idle"): 100.0}, {}, 10.0, 20.0)}, None)
    query = UsageQuery(0, 10)
    _, total = table.sums(query, settings)
    assert total.joules - total.least == pytest.approx(math.sqrt(20**2 + 10**2 + 10**2))
    _, total = table.sums(query, UsageSettings(common_error=0.05))
    assert total.joules - total.least == pytest.approx(20 + math.sqrt(10**2 + 5**2 + 5**2))
    _, total = table.sums(query, UsageSettings(common_error=1.0))
    assert total.joules - total.least == 40, "never wider than the sum"
    table.close()


def test_a_job_that_is_kept_again_counts_once(tmp_path: Path) -> None:
    table = UsageTable(str(tmp_path / "usage.sqlite"))
    (one,) = simulate(1, 3)
    store(table, [one, one, one._replace(energies={})])
    rows, _ = table.sums(UsageQuery(0, NOW + 1), SETTINGS)
    assert [(row.jobs, row.measured) for row in rows] == [(1, 0)]
    table.remove_before(NOW + 1)
    assert table.sums(UsageQuery(0, NOW + 1), SETTINGS)[0] == []
    table.close()


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    table = UsageTable(str(tmp_path / "usage.sqlite"))
    job = StoredJob(
        "fox", "1'; drop table usage; --", "=cmd()", "completed", 1, 2, (),
        details=StoredJobDetails(account="' or 1=1"),
    )  # fmt: skip
    table.keep(job, {}, None)
    rows, _ = table.sums(UsageQuery(0, 10, user="=cmd()"), SETTINGS)
    assert [row.key for row in rows] == ["' or 1=1"]
    assert table.sums(UsageQuery(0, 10, user="' or ''='"), SETTINGS)[0] == []
    table.close()


def test_a_damaged_table_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_bytes(b"not a database" * 100)
    path.chmod(0o600)
    open_usage(str(path)).close()
    assert (tmp_path / "usage.sqlite.damaged").exists()
    with pytest.raises(ConfigurationError, match="check the disk"):
        open_usage(str(tmp_path / "none" / "usage.sqlite"))
    assert sqlite3.connect(path).execute("select count(*) from usage").fetchone() == (0,)


@pytest.mark.parametrize("content", [None, b"x" * 4096])
def test_a_table_that_is_lost_while_it_runs_is_made_again(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "usage.sqlite"
    table = UsageTable(str(path))
    jobs = [StoredJob("fox", str(number), "ada", "completed", 1, 2, ()) for number in range(999)]
    for job in jobs:
        table.keep(job, {}, None)
    with closing(sqlite3.connect(path)) as other:
        other.execute("pragma wal_checkpoint(truncate)")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:4096] + content * 20)
    table.keep(jobs[0], {}, None)
    table.close()
    assert UsageTable(str(path)).find("fox", "0", 1)
    assert (tmp_path / "usage.sqlite.damaged").exists() == (content is not None)
