"""The labelled jobs of tests/data/jobs: which rule is right how often, and no contradictions."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.views.job.figures import CoreUse
from ccagent.views.job.judged_job import JobFinding
from ccagent.views.job.rules import RULE_NAMES
from tests.support.labelled_jobs import PARTS, Compared, compare, count_by_rule
from tests.unit.views.job.support import HOUR, card, job, node, report

LEAST = 0.9
_OPTION = re.compile(r"--(nodes|gpus|mem|mem-per-gpu|time|ntasks|cpus-per-task)\b=?([\w.:]*)")


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts() -> dict[str, list[Compared]]:
    return {part: compare(part) for part in PARTS}


def test_each_rule_is_right_in_nine_of_ten_jobs(parts: dict[str, list[Compared]]) -> None:
    every = [one for found in parts.values() for one in found]
    assert len(every) >= 100
    counts = count_by_rule(every)
    assert set(counts) == set(RULE_NAMES)
    for rule, (right, wrong, missing) in counts.items():
        assert right >= LEAST * (right + wrong), rule
        assert right >= LEAST * (right + missing), rule


@pytest.mark.parametrize("part", PARTS)
def test_advice_of_each_part(part: str, parts: dict[str, list[Compared]]) -> None:
    counts = list(count_by_rule(parts[part]).values())
    right, wrong, missing = (sum(column) for column in zip(*counts, strict=True))
    assert right >= LEAST * (right + wrong)
    assert right >= LEAST * (right + missing)


@pytest.mark.parametrize("part", PARTS)
def test_texts_say_what_a_person_would(part: str, parts: dict[str, list[Compared]]) -> None:
    assert {one.job.name: one.texts for one in parts[part] if one.texts} == {}


def contradictions(findings: tuple[JobFinding, ...]) -> list[str]:
    """Return the resources with several findings, and options with several values."""
    resources = Counter(one.resource for one in findings)
    values: dict[str, set[str]] = {}
    for one in findings:
        for option, value in _OPTION.findall(one.text):
            values.setdefault(option, set()).add(value)
    return [name for name, count in resources.items() if count > 1] + [
        option for option, found in values.items() if len(found - {""}) > 1
    ]


def test_no_labelled_job_has_contradictions(parts: dict[str, list[Compared]]) -> None:
    for found in parts.values():
        for one in found:
            assert contradictions((*one.report.findings, *one.report.hidden)) == []


SHARES = st.floats(0, 1)


@given(
    cpu=st.lists(SHARES, min_size=1, max_size=4), peak=SHARES, pressure=st.floats(0, 100),
    io=st.floats(0, 100), high=st.floats(0, 64), serial=SHARES, quiet=SHARES,
    gpu=st.lists(st.floats(0, 100), max_size=4), total=st.sampled_from([None, 16, 64]),
    state=st.sampled_from(["COMPLETED", "RUNNING", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED"]),
    name=st.sampled_from(["fit", "interactive"]), kills=st.integers(0, 1),
)  # fmt: skip
def test_no_job_has_contradictions(
    cpu: list[float], peak: float, pressure: float, io: float, high: float, serial: float,
    quiet: float, gpu: list[float], total: float | None, state: str, name: str, kills: int,
) -> None:  # fmt: skip
    cards = tuple(card(str(n), utilization=use, samples=240) for n, use in enumerate(gpu))
    nodes = [
        node(
            f"n{number}",
            cpu_seconds=use * 16 * 2 * HOUR,
            memory_peak=peak * 64 * 2**30,
            memory_pressure=pressure,
            io_pressure=io,
            oom_kills=kills,
            cards=cards,
            total_cores=total,
            total_cards=8,
        )
        for number, use in enumerate(cpu)
    ]
    use = CoreUse(peak=high, high=high, serial=serial, quiet=quiet * 2 * HOUR)
    figures = structs.replace(job(*nodes, state=state, name=name), use=use)
    found = report(figures)
    assert contradictions((*found.findings, *found.hidden)) == []
