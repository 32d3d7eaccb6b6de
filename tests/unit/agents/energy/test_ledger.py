"""energy: the ledger conserves every microjoule, and the truth of a model lies in its intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import (
    NODE_METER,
    DomainClaim,
    DomainKind,
    DomainUse,
    EnergyDomain,
    JobAccount,
    MeasuredEnergy,
)
from ccagent.agents.energy.idle_power import IdleFloor
from ccagent.agents.energy.job_states import JobState, NodeSnapshot, NodeUse
from ccagent.agents.energy.ledger import Ledger
from tests.support.energy_model import GIB, ModelJob, ModelMachine, ceems, kepler, run_model

P0, D0, CARD = EnergyDomain("package", 0), EnergyDomain("dram", 0), EnergyDomain("card", 0)
RATIOS: dict[DomainKind, float] = {"package": 2.0, "dram": 15.0, "card": 2.0, "node": 2.0}
SOCKETS = {cpu: cpu // 4 for cpu in range(8)}
JOBS = st.dictionaries(
    st.integers(1, 9),
    st.tuples(
        st.none() | st.integers(0, 10**8),
        st.frozensets(st.integers(0, 9), max_size=8),
        st.integers(0, 80 * GIB),
    ).map(lambda each: JobState(*each)),
    max_size=5,
)


def make_state(jobs: dict[int, JobState], busy: list[int], *, is_complete: bool) -> NodeSnapshot:
    return NodeSnapshot(0.0, jobs, dict(enumerate(busy)), SOCKETS, 64 * GIB, is_complete)


def make_energy(energy: int, flaw: str) -> MeasuredEnergy:
    return MeasuredEnergy(0 if flaw else energy, 10.0, "x", flaw=flaw)


STATES = st.builds(
    make_state,
    JOBS,
    st.lists(st.integers(0, 10**8), min_size=8, max_size=8),
    is_complete=st.booleans(),
)
ENERGIES = st.dictionaries(
    st.sampled_from([
        P0, D0, EnergyDomain("package", 1), EnergyDomain("dram", 1), CARD, NODE_METER,
        EnergyDomain("board", 1), EnergyDomain("package", -1),
    ]),
    st.builds(
        make_energy,
        st.integers(0, 10**12), st.sampled_from(["", "", "", "a gap"]),
    ),
)  # fmt: skip


def no_card(_: int) -> DomainUse:
    return DomainUse({}, 0, 1)


def card_of_5(_: int) -> DomainUse:
    return DomainUse({5: DomainClaim(1, 5_000_000, 1, 1)}, 1, 10_000_000)


@given(st.lists(st.tuples(STATES, ENERGIES), min_size=1, max_size=5), st.integers(0, 100))
def test_jobs_system_and_nobody_make_up_what_was_measured(
    ticks: list[tuple[NodeSnapshot, dict[EnergyDomain, MeasuredEnergy]]], idle: int
) -> None:
    ledger = Ledger(IdleFloor({"package": float(idle)}, RATIOS), RATIOS)
    before = NodeSnapshot(0.0, {}, {}, SOCKETS, 64 * GIB)
    jobs: dict[int, JobAccount] = {}
    for number, (state, measured) in enumerate(ticks, 1):
        now = state._replace(moment=number * 10.0)
        totals = ledger.add_tick(NodeUse(before, now), measured, card_of_5, number * 10.0)
        before = now
        jobs |= ledger.jobs
        for domain, energy in totals.measured.items():
            assert sum(totals.split[domain].values()) == energy or domain == NODE_METER
            assert min(totals.split[domain].values(), default=0) >= 0
        if NODE_METER in totals.measured:
            split = totals.split[NODE_METER]
            assert sum(split.values()) == totals.measured[NODE_METER]
    node = ledger.node
    owned = sum(account.active + account.idle for account in jobs.values())
    assert owned + sum(node.system.values()) + sum(node.unallocated.values()) == (
        sum(node.energy.values())
    )
    for account in jobs.values():
        assert 0.0 <= account.coverage <= 1.0
        assert 0.0 <= account.alone <= 1.0
        interval = account.interval(0.05, 0.1)
        assert interval.least <= (account.active + account.idle) / 1e6 <= interval.most


@given(st.lists(st.tuples(STATES, ENERGIES), min_size=1, max_size=3))
def test_what_remains_of_the_node_is_carried_and_never_negative(
    ticks: list[tuple[NodeSnapshot, dict[EnergyDomain, MeasuredEnergy]]],
) -> None:
    ledger = Ledger(IdleFloor({}, RATIOS), RATIOS)
    before = NodeSnapshot(0.0, {}, {}, SOCKETS, 64 * GIB)
    expected = 0
    for number, (state, measured) in enumerate(ticks, 1):
        now = state._replace(moment=number * 10.0)
        whole = {d: e._replace(flaw="") for d, e in measured.items() if d.kind != "board"}
        ledger.add_tick(NodeUse(before, now), whole, no_card, number * 10.0)
        before = now
        if NODE_METER in whole:
            parts = sum(each.energy for d, each in whole.items() if d != NODE_METER)
            expected += whole[NODE_METER].energy - parts
    assert ledger.node.energy.get("other", 0) + ledger.node.carried == expected
    assert ledger.node.carried <= 0


def pair(first: float, second: float, *, busy: float = 0.9) -> list[ModelJob]:
    """Two jobs that share each socket half and half."""
    return [
        ModelJob(number=1, cpus=(*range(8), *range(16, 24)), watts=first, busy=busy),
        ModelJob(number=2, cpus=(*range(8, 16), *range(24, 32)), watts=second, busy=busy),
    ]


@pytest.mark.parametrize("knows_idle", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "second"), [(3.0, 3.0), (2.5, 5.0), (5.0, 2.5), (4.0, 3.0)])
def test_the_truth_lies_in_the_interval_while_the_assumption_holds(
    first: float, second: float, seed: int, *, knows_idle: bool
) -> None:
    machine = ModelMachine(pair(first, second), system_busy=0.01, seed=seed)
    run = run_model(machine, 50, knows_idle=knows_idle)
    for number, account in run.ledger.jobs.items():
        truth = machine.true_energy(number)
        least, most = account.interval(0.0, 0.0)
        assert least - 0.001 <= truth <= most + 0.001
    for totals in run.totals:
        for domain, energy in totals.measured.items():
            assert sum(totals.split[domain].values()) == energy


@pytest.mark.parametrize("seed", range(3))
def test_a_learned_idle_power_keeps_the_truth_in_the_interval(seed: int) -> None:
    """It holds what the system does meanwhile, which is less than the error of a counter."""
    jobs = [replace(job, first=25) for job in pair(3.0, 5.0, busy=0.6)]
    machine = ModelMachine(jobs, system_busy=0.005, seed=seed)
    run = run_model(machine, 60, knows_idle=False)
    for number, account in run.ledger.jobs.items():
        truth = machine.true_energy(number)
        least, most = account.interval(0.05, 0.1)
        assert not account.is_idle_unknown
        assert least <= truth <= most


def test_beyond_the_assumption_the_interval_does_not_hold() -> None:
    """So the interval means something: it is not as wide as to hold anything."""
    machine = ModelMachine(pair(1.0, 8.0))
    account = run_model(machine, 20, knows_idle=True).ledger.jobs[1]
    truth = machine.true_energy(1)
    assert not account.interval(0.0, 0.0).least <= truth <= account.interval(0.0, 0.0).most
    assert (
        run_model(ModelMachine(pair(1.0, 8.0)), 20, ratio=8.0, knows_idle=True)
        .ledger.jobs[1]
        .interval(0.0, 0.0)
        .least
        <= truth
    )


def test_a_job_alone_on_its_sockets_is_measured_exactly() -> None:
    machine = ModelMachine([ModelJob(number=1, cpus=tuple(range(16)), watts=5.0, busy=0.5)])
    account = run_model(machine, 20).ledger.jobs[1]
    truth = machine.true_energy(1)
    least, most = account.interval(0.0, 0.0)
    assert account.alone == 1.0
    assert abs(least - truth) < 0.001
    assert abs(most - truth) < 0.001


def test_one_busy_core_does_not_carry_the_package() -> None:
    """CEEMS gives all of an empty node to one core; Kepler too little to everyone."""
    machine = ModelMachine([ModelJob(number=1, cpus=(0,), watts=5.0, busy=1.0)])
    account = run_model(machine, 20, knows_idle=True).ledger.jobs[1]
    truth = machine.true_energy(1)
    assert abs((account.active + account.idle) / 1e6 - truth) < 0.001 * truth
    assert ceems(machine)[1] > 10 * truth
    assert kepler(machine)[1] < 0.8 * machine.truth[1]


def test_jobs_come_and_go() -> None:
    jobs = [
        ModelJob(number=1, cpus=(0, 1, 2, 3), watts=3.0, busy=0.8, first=3, last=10),
        ModelJob(number=2, cpus=(2, 3, 4), watts=4.0, busy=0.4, first=5),
    ]
    run = run_model(ModelMachine(jobs, system_busy=0.02), 20)
    for totals in run.totals:
        for domain, energy in totals.measured.items():
            assert sum(totals.split[domain].values()) == energy


def test_an_unknown_idle_floor_is_said() -> None:
    run = run_model(ModelMachine(pair(3.0, 3.0)), 5, knows_idle=False)
    account = run.ledger.jobs[1]
    assert account.method == "model/cpu-time idle=unknown"
    known = run_model(ModelMachine(pair(3.0, 3.0)), 5, knows_idle=True)
    assert known.ledger.jobs[1].method == "model/cpu-time"


def test_one_busy_core_of_a_full_cluster_is_within() -> None:
    """No window without a job: its package's idle power is known to be below its power."""
    machine = ModelMachine([ModelJob(number=1, cpus=(0,), watts=5.0, busy=1.0)])
    account = run_model(machine, 20).ledger.jobs[1]
    truth = machine.true_energy(1)
    least, most = account.interval(0.0, 0.0)
    assert least < truth < most
    assert most > 5 * truth
    assert (account.active + account.idle) / 1e6 == pytest.approx(truth, rel=0.1)
    assert account.is_idle_unknown


def test_memory_has_its_own_bounds() -> None:
    """Jobs of 1 and 15 W of memory per busy cpu, half and half."""
    jobs = [
        replace(job, memory_watts=watts)
        for job, watts in zip(pair(3.0, 3.0), (0.1, 1.5), strict=True)
    ]
    machine = ModelMachine(jobs, memory_idle=10.0)
    run = run_model(machine, 20, knows_idle=True)
    for number, account in run.ledger.jobs.items():
        least, most = account.memory_interval(0.0, 0.0)
        assert least - 0.001 <= machine.true_memory(number) <= most + 0.001
        whole = account.interval(0.0, 0.0)
        assert whole.most - whole.least > most - least
