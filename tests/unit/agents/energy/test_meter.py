"""energy: composed machines, tick by tick: sockets, wraps, jobs that come and go, restarts."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from ccagent.agents.base import write_state
from ccagent.agents.energy.accounts import NODE_METER, SYSTEM, UNALLOCATED, EnergyDomain
from ccagent.agents.energy.meter import EnergyMeter, EnergyTick, KeptDomain, load_state
from tests.support.energy_tree import (
    AMD_RANGE,
    GIB,
    EnergyNode,
    make_meter,
    make_settings,
)

P0, P1 = EnergyDomain("package", 0), EnergyDomain("package", 1)
D0, D1 = EnergyDomain("dram", 0), EnergyDomain("dram", 1)
IDLE = {"idle-package": 40.0, "idle-dram": 5.0}


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> EnergyNode:
    """A node with RAPL and control groups of either version."""
    found = EnergyNode(tmp_path, version=request.param)
    found.zones()
    return found


def spend(node: EnergyNode, joules: float = 1000.0) -> None:
    """Let ten seconds pass, in which each package takes so much and its memory a tenth."""
    for zone, energy in (("0", joules), ("1", joules), ("0:0", joules / 10), ("1:0", joules / 10)):
        if zone in node.energies:
            node.spend(zone, energy)
    node.still.sleep(10)


def check_sums(tick: EnergyTick) -> None:
    """Check that jobs, system and nobody make up what was measured, in each domain."""
    for domain, energy in tick.totals.measured.items():
        assert sum(tick.totals.split[domain].values()) == energy


def joules(meter: EnergyMeter, job: int, part: str = "cpu") -> tuple[float, float]:
    """Return the active and idle joules of a part of a job."""
    energy = meter.ledger.jobs[job].energy
    return energy.get(f"{part} active", 0) / 1e6, energy.get(f"{part} idle", 0) / 1e6


def test_jobs_on_one_socket_the_other_and_both(node: EnergyNode) -> None:
    node.job(1, "0-1")
    node.job(2, "4-5")
    node.job(3, "2-3,6-7")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 1000, 1: 1000})
    node.work(2, {4: 500, 5: 500})
    node.work(3, {2: 1000, 3: 0, 6: 1000, 7: 0})
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    assert tick.totals.measured == {P0: 10**9, P1: 10**9, D0: 10**8, D1: 10**8}
    assert joules(meter, 1) == (400.0, 200.0)
    assert joules(meter, 2) == (300.0, 200.0)
    assert joules(meter, 3) == (500.0, 400.0)
    active, idle = joules(meter, 1, "memory")
    assert active == pytest.approx(50 * 2 / 3)
    assert idle == 12.5
    assert {job: meter.ledger.jobs[job].alone for job in (1, 2, 3)} == {1: 0, 2: 0, 3: 0}
    assert tick.errors == []


def test_the_system_and_nobody_have_the_rest(node: EnergyNode) -> None:
    node.job(1, "0-1")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 900})
    node.other_work({3: 100})
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    assert tick.totals.split[P0] == {1: 540_000_000 + 200_000_000, SYSTEM: 60_000_000,
                                     UNALLOCATED: 200_000_000}  # fmt: skip
    assert tick.totals.split[P1] == {SYSTEM: 0, UNALLOCATED: 10**9}
    assert meter.ledger.jobs[1].alone == 1.0
    assert meter.ledger.jobs[1].coverage == 1.0


def test_a_job_that_is_confined_to_no_cpus_has_them_all(node: EnergyNode) -> None:
    node.job(1, "")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 1000})
    spend(node)
    check_sums(meter.tick(node))
    account = meter.ledger.jobs[1]
    assert account.idle == account.of("cpu", "idle") + account.of("memory", "idle")
    assert account.of("cpu", "idle") == 400_000_000 + 1_000_000_000
    assert account.least <= account.active + account.idle <= account.most


def test_two_jobs_that_share_cpus_share_their_idle_energy(node: EnergyNode) -> None:
    node.job(1, "0-3")
    node.job(2, "0-3")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 300})
    node.work(2, {1: 100})
    spend(node)
    check_sums(meter.tick(node))
    assert joules(meter, 1) == (450.0, 200.0)
    assert joules(meter, 2) == (150.0, 200.0)


def test_a_wrap_in_mid_run_is_followed(node: EnergyNode) -> None:
    node.zone("0", "package-0", AMD_RANGE, energy=AMD_RANGE - 400_000_000)
    meter = make_meter(node, **IDLE)
    spend(node)
    tick = meter.tick(node)
    assert tick.totals.measured[P0] == 1_000_000_000
    assert tick.errors == []


def test_a_gap_with_two_wraps_is_invalid_and_is_said(node: EnergyNode) -> None:
    for zone in ("0", "1"):
        node.zone(zone, f"package-{zone}", AMD_RANGE)
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 1000})
    node.still.sleep(290)
    spend(node, 2 * 65_532.0)
    tick = meter.tick(node)
    assert not {P0, P1} & tick.totals.measured.keys()
    (error,) = tick.errors
    assert error == (
        "package 0: no energy since the last sample: 300 s between two readings, and the counter"
        " may wrap every 66 s"
    )
    account = meter.ledger.jobs[1]
    assert account.coverage < 1
    before = account.of("cpu", "active")
    node.work(1, {0: 1000})
    spend(node)
    assert meter.tick(node).totals.measured[P0] == 10**9
    assert account.of("cpu", "active") > before


def test_a_thread_follows_the_wraps_of_long_ticks(node: EnergyNode) -> None:
    node.zone("0", "package-0", AMD_RANGE)
    meter = make_meter(node, every="5m", **IDLE)
    try:
        poller = meter._poller
        assert poller is not None
        assert poller.is_running
        for _ in range(10):
            node.spend("0", 30 * 400)
            node.still.sleep(30)
            with poller.lock:
                poller._function()
        tick = meter.tick(node)
        assert tick.totals.measured[P0] == 120_000_000_000
    finally:
        meter.close()
    assert not poller.is_running


def test_short_ticks_need_no_thread(node: EnergyNode) -> None:
    meter = make_meter(node, every="10s")
    assert meter._poller is None


def test_a_counter_that_starts_again_costs_a_tick(node: EnergyNode) -> None:
    node.zone("0", "package-0", AMD_RANGE, energy=50_000_000_000)
    meter = make_meter(node, **IDLE)
    node.energies["0"] = 0
    spend(node)
    tick = meter.tick(node)
    assert P0 not in tick.totals.measured
    assert tick.errors == ["package 0: no energy since the last sample: the counter was reset"]
    spend(node)
    assert meter.tick(node).totals.measured[P0] == 10**9


def test_a_suspended_machine_has_no_energy_for_that_time(node: EnergyNode) -> None:
    meter = make_meter(node, **IDLE)
    node.still.booted += 30
    spend(node)
    assert "the machine was suspended" in meter.tick(node).errors[0]
    spend(node)
    assert meter.tick(node).errors == []


def test_an_unreadable_zone_costs_its_own_domain_and_coverage(node: EnergyNode) -> None:
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    path = node.path / "sys/class/powercap/intel-rapl:0/energy_uj"
    path.unlink()
    path.mkdir()
    node.work(1, {0: 500})
    node.spend("1", 500)
    node.still.sleep(10)
    tick = meter.tick(node)
    assert P0 not in tick.totals.measured
    assert P1 in tick.totals.measured
    assert meter.ledger.jobs[1].coverage == 0.5  # memory is known
    path.rmdir()
    spend(node)
    assert P0 not in meter.tick(node).totals.measured  # two ticks are not one tick's energy
    spend(node)
    assert P0 in meter.tick(node).totals.measured


def test_psys_and_cores_are_not_added(node: EnergyNode) -> None:
    node.zone("0:1", "core", AMD_RANGE)
    node.zone("2", "psys", AMD_RANGE)
    meter = make_meter(node, **IDLE)
    node.spend("0:1", 900)
    node.spend("2", 3000)
    spend(node)
    assert {*meter.tick(node).totals.measured} == {P0, P1, D0, D1}


def test_amd_has_no_memory(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.zones(dram=False)
    meter = make_meter(node)
    spend(node)
    assert {*meter.tick(node).totals.measured} == {P0, P1}


def test_jobs_appear_vanish_and_reappear(node: EnergyNode) -> None:
    meter = make_meter(node, **IDLE)
    node.job(1, "0-3")
    node.work(1, {0: 400})
    spend(node)
    check_sums(meter.tick(node))
    # It was there for some of the tick: half of the idle energy of its cpus.
    assert joules(meter, 1) == (600.0, 200.0)
    node.work(1, {0: 100})
    node.end(1)
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    assert meter.ledger.jobs == {}
    (ended,) = meter.take_ended(node)
    assert ended.account.job == 1
    assert ended.account.of("cpu", "idle") == 400_000_000
    assert ended.account.coverage == 0.5  # what it did in its last tick is not known
    node.job(1, "0-3")
    node.work(1, {0: 100})
    spend(node)
    check_sums(meter.tick(node))
    assert joules(meter, 1) == (600.0, 200.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_job_that_was_moved_has_the_energy_of_both_sockets(node: EnergyNode) -> None:
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 500})
    for name in ("cpuset.cpus.effective", "cpuset.cpus"):
        for controller in ("cpuset", "cpuacct"):
            path = node.path / node.job_path(1, controller) / name
            if path.exists():
                path.write_text("4-7\n")
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    assert tick.totals.split[P0][1] == 600_000_000  # all of its active energy
    assert tick.totals.split[P1][1] == 1_000_000_000  # of the cpus that it holds now
    assert joules(meter, 1) == (600.0, 1000.0)


def test_the_user_of_a_job_is_that_of_its_processes(node: EnergyNode) -> None:
    for job, pid in ((1, 100), (2, 200)):
        node.job(job, "0-3")
        node.write(f"{node.job_path(job)}/cgroup.procs", "99\n")
        node.write(f"{node.job_path(job)}/step_0/cgroup.procs", f"{pid}\n")
        (node.path / f"proc/{pid}").mkdir()
    (node.path / "proc/99").mkdir()
    os.chown(node.path / "proc/100", 1001, 1001)
    meter = make_meter(node)
    spend(node)
    meter.tick(node)
    of_second = "_user_1001" if node.version == 1 else ""  # root's processes are slurmstepd's
    assert [meter.ledger.jobs[job].user for job in (1, 2)] == ["_user_1001", of_second]


def test_a_requeued_job_counts_from_0_again(node: EnergyNode) -> None:
    node.job(1, "0-3")
    node.work(1, {0: 900})
    meter = make_meter(node, **IDLE)
    node.job(1, "0-3")
    node.work(1, {0: 100})
    spend(node)
    check_sums(meter.tick(node))
    assert joules(meter, 1)[0] == 600.0


def test_jobs_that_cannot_be_listed_have_not_ended(node: EnergyNode) -> None:
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    spend(node)
    meter.tick(node)
    for controller in ("cpuacct", "cpuset", "memory"):
        above = (node.path / node.job_path(1, controller)).parent
        if above.is_dir():
            above.rename(node.path / controller)
            above.symlink_to(above)  # what can't be read, by root neither
    spend(node)
    assert meter.tick(node).errors
    assert 1 in meter.ledger.jobs
    assert meter.take_ended(node) == []


def test_without_jobs_all_is_the_systems_or_nobodys(node: EnergyNode) -> None:
    meter = make_meter(node, **IDLE)
    node.other_work({0: 50})
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    assert tick.totals.split[P0] == {SYSTEM: 600_000_000, UNALLOCATED: 400_000_000}


def test_idle_power_is_learned_and_then_split_off(node: EnergyNode) -> None:
    meter = make_meter(node)
    for _ in range(18):
        spend(node, 400)
        meter.tick(node)
    assert meter.ledger.floor.watts(P0) == 40.0
    node.job(1, "0-3")
    spend(node)
    meter.tick(node)
    node.work(1, {0: 500})
    spend(node)
    check_sums(meter.tick(node))
    assert joules(meter, 1)[0] == 600.0


def test_cpus_go_offline_and_come_back(node: EnergyNode) -> None:
    node.job(1, "0-7")
    meter = make_meter(node, **IDLE)
    node.write("sys/devices/system/cpu/online", "0-3\n")
    node.ticks = {cpu: ticks for cpu, ticks in node.ticks.items() if cpu < 4}
    node.work(1, {0: 100})
    spend(node)
    check_sums(meter.tick(node))
    assert meter.use is not None
    assert meter.use.jobs[1].cpus == frozenset(range(4))
    node.write("sys/devices/system/cpu/online", "0-7\n")
    node.ticks |= dict.fromkeys(range(4, 8), 70)
    node.show_cpus()
    spend(node)
    check_sums(meter.tick(node))


def test_a_jump_of_the_clock_changes_no_energy(node: EnergyNode) -> None:
    meter = make_meter(node, **IDLE)
    spend(node)
    meter.tick(node)
    node.still.wall -= 86_400
    spend(node)
    tick = meter.tick(node)
    assert tick.totals.measured[P0] == 10**9
    assert not meter.is_clock_steady
    for _ in range(2):
        spend(node)
        meter.tick(node)
    assert meter.is_clock_steady


def test_a_restart_loses_nothing(node: EnergyNode, tmp_path: Path) -> None:
    state = str(tmp_path / "energy.state")
    node.job(1, "0-3")
    node.job(2, "4-7")
    first = make_meter(node, **{**IDLE, "state-file": state})
    node.work(1, {0: 500})
    spend(node)
    first.tick(node)
    first.save()
    first.close()
    node.work(1, {0: 500})
    node.end(2)
    spend(node)
    second = make_meter(node, **{**IDLE, "state-file": state})
    spend(node, 0)
    tick = second.tick(node)
    check_sums(tick)
    assert tick.totals.measured[P0] == 10**9
    account = second.ledger.jobs[1]
    assert account.of("cpu", "active") == (1000 + 1000 - 400 - 800) * 10**6
    assert account.coverage == 1.0
    (ended,) = second.take_ended(node)
    assert ended.account.job == 2
    # Nothing ran on its socket: all energy of the first tick, half of that of the second one.
    assert ended.account.of("cpu", "idle") == 1_000_000_000 + 500_000_000
    second.close()


def test_a_long_downtime_lowers_the_coverage(node: EnergyNode, tmp_path: Path) -> None:
    state = str(tmp_path / "energy.state")
    node.job(1, "0-3")
    first = make_meter(node, **{**IDLE, "state-file": state})
    spend(node)
    first.tick(node)
    first.save()
    node.still.sleep(1000)
    second = make_meter(node, **{**IDLE, "state-file": state})
    spend(node)
    second.tick(node)
    assert second.ledger.jobs[1].coverage == pytest.approx(20 / 1020)


def test_after_a_boot_the_jobs_before_have_ended(node: EnergyNode, tmp_path: Path) -> None:
    state = str(tmp_path / "energy.state")
    node.job(1, "0-3")
    first = make_meter(node, **{"state-file": state})
    for _ in range(18):
        spend(node)
        first.tick(node)
    first.save()
    node.write("proc/sys/kernel/random/boot_id", "second\n")
    node.end(1)
    second = make_meter(node, **{"state-file": state})
    assert [ended.account.job for ended in second.take_ended(node)] == [1]
    assert second.ledger.jobs == {}


def test_a_damaged_state_file_is_no_state(node: EnergyNode, tmp_path: Path) -> None:
    state = tmp_path / "energy.state"
    state.write_bytes(b"\xc1damaged")
    meter = make_meter(node, **{**IDLE, "state-file": str(state)})
    spend(node)
    assert meter.tick(node).totals.measured[P0] == 10**9


@pytest.mark.parametrize(
    "damage",
    [{"moment": number} for number in (float("nan"), 1e308, -1.0)]
    + [{"idle": [KeptDomain("package", 0, [float("nan")] * 3)]}]
    + [{"idle": [KeptDomain("package", 0, bounds=(0.0, float("nan")))]}]
    + [{"idle": [KeptDomain("package", 0, sums=[float("nan")] * 6)]}],
)
def test_a_state_file_with_impossible_numbers_is_no_state(
    node: EnergyNode, tmp_path: Path, damage: dict[str, object]
) -> None:
    path = str(tmp_path / "energy.state")
    node.job(1, "0-3")
    make_meter(node, **{"state-file": path}).save()
    state = load_state(path)
    assert state is not None
    write_state(path, msgspec.structs.replace(state, **damage))
    assert load_state(path) is None
    meter = make_meter(node, **{"state-file": path})
    spend(node)
    assert meter.tick(node).totals.measured[P0] == 10**9


def test_pm_counters_tell_what_the_node_takes_beyond_its_parts(node: EnergyNode) -> None:
    def show(joules: int, scan: int) -> None:
        for name, text in (("energy", f"{joules} J 1234 us"), ("freshness", str(scan)),
                           ("startup", "77"), ("power", "300 W 1234 us")):  # fmt: skip
            node.write(f"sys/cray/pm_counters/{name}", f"{text}\n")

    show(100_000, 1)
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    spend(node)
    show(103_000, 101)
    tick = meter.tick(node)
    check_sums(tick)
    assert tick.totals.measured[NODE_METER] == 800_000_000
    assert tick.totals.split[NODE_METER] == {1: 400_000_000, SYSTEM: 0, UNALLOCATED: 400_000_000}
    assert meter.ledger.jobs[1].measured == 2200 / 3000
    spend(node)
    show(105_000, 201)  # less than its parts: the meters are not read at one moment
    assert meter.tick(node).totals.measured[NODE_METER] == 0
    spend(node)
    show(108_000, 301)
    tick = meter.tick(node)
    assert tick.totals.measured[NODE_METER] == 600_000_000
    assert meter.ledger.node.carried == 0


@pytest.mark.parametrize("lost", [".", "intel-rapl:1"])
def test_the_energy_of_a_lost_source_is_not_other(node: EnergyNode, lost: str) -> None:
    def pass_tick(scan: int, lost: str = "") -> EnergyTick:
        spend(node)
        for name, text in (("energy", f"{3000 * scan} J 1 us"), ("freshness", scan),
                           ("startup", 7)):  # fmt: skip
            node.write(f"sys/cray/pm_counters/{name}", f"{text}\n")
        if lost:
            (node.path / "sys/class/powercap" / lost).resolve().rename(node.path / "away")
        return meter.tick(node)

    node.job(1, "0-7")
    meter = EnergyMeter(make_settings(**IDLE))
    pass_tick(1)
    pass_tick(2)
    assert pass_tick(3).totals.measured[NODE_METER] == 800_000_000
    tick = pass_tick(4, lost)
    assert NODE_METER not in tick.totals.measured
    assert any("no energy since the last sample" in error for error in tick.errors)
    assert meter.ledger.jobs[1].coverage < 1
    meter.close()


def test_a_node_without_rapl_is_split_by_cpu_time(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.write("sys/class/hwmon/hwmon0/name", "power_meter\n")
    node.write("sys/class/hwmon/hwmon0/power1_average", "400000000\n")
    node.job(1, "0-3")
    node.job(2, "4-7")
    meter = make_meter(node)
    node.work(1, {0: 900})
    node.work(2, {4: 300})
    node.still.sleep(10)
    tick = meter.tick(node)
    check_sums(tick)
    assert sum(tick.totals.split[NODE_METER].values()) == 4 * 10**9
    active, idle = joules(meter, 1, "other")
    other = joules(meter, 2, "other")
    assert other[0] == pytest.approx(active / 3)
    assert other[1] == idle
    account = meter.ledger.jobs[1]
    assert account.method == "hwmon/cpu-time idle=unknown"
    # Idle power may be 0 to 400 W: half of the energy, or up to 6/7 by twofold watts.
    assert account.least == 2 * 10**9
    assert account.most == pytest.approx(4 * 10**9 * 6 / 7, rel=1e-6)
    assert meter.ledger.jobs[1].coverage == 1.0
    meter.close()


def test_a_job_outlives_its_source(node: EnergyNode) -> None:
    node.job(1, "0-3")
    meter = make_meter(node, **IDLE)
    node.work(1, {0: 500})
    spend(node)
    meter.tick(node)
    known = meter.ledger.jobs[1].active
    powercap = node.path / "sys/class/powercap"
    powercap.rename(node.path / "away")
    for _ in range(3):
        node.work(1, {0: 500})
        node.still.sleep(10)
        tick = meter.tick(node)
        assert tick.is_blind
        assert "rapl" in tick.absent
    assert meter.ledger.jobs[1].active == known
    assert meter.ledger.jobs[1].power is None
    (node.path / "away").rename(powercap)
    node.work(1, {0: 500})
    spend(node)
    (error, *_) = meter.tick(node).errors
    assert error.endswith("the reading covers 40 s, the tick 10 s")
    node.work(1, {0: 500})
    spend(node)
    assert not meter.tick(node).errors
    node.end(1)
    spend(node)
    meter.tick(node)
    (ended,) = meter.take_ended(node)
    assert ended.account.active > known
    assert ended.account.coverage == pytest.approx(2 / 6.5)


def test_records_that_wait_outlast_a_restart(node: EnergyNode, tmp_path: Path) -> None:
    state = {"state-file": str(tmp_path / "energy.state")}
    node.job(1, "0-3")
    first = make_meter(node, **state, sacct="no-sacct")
    node.end(1)
    spend(node)
    first.tick(node)
    assert first.take_ended(node) == []  # it waits for Slurm
    first.save()
    first.close()
    second = make_meter(node, **state)
    assert [ended.account.job for ended in second.take_ended(node)] == [1]
    second.close()


def test_a_meter_that_is_none_of_the_node_is_named(node: EnergyNode) -> None:
    node.write("sys/class/hwmon/hwmon0/name", "power_meter\n")
    node.write("sys/class/hwmon/hwmon0/power1_average", "20000000\n")
    meter = make_meter(node, **IDLE)
    spend(node)
    check_sums(meter.tick(node))
    spend(node)
    tick = meter.tick(node)
    check_sums(tick)
    (error,) = tick.errors
    assert error == (
        "node: its meter shows less than packages, memory and cards together, by 4000 J so far;"
        " is it a meter of the whole node?"
    )
    meter.close()


def test_a_machine_without_any_source_is_blind(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.job(1, "0-3", memory=GIB)
    meter = EnergyMeter(make_settings(rapl="auto"))
    meter.open(node)
    node.still.sleep(10)
    tick = meter.tick(node)
    assert tick.is_blind
    assert tick.errors == []
    assert meter.ledger.jobs[1].coverage == 0.0
    assert {*tick.absent} == {"rapl", "pm_counters", "hwmon"}
    meter.close()
