"""metrics, power: zones of RAPL, their sockets, counters that wrap, and who may read them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Scope
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.counters import Rates
from ccagent.machine.node import Node
from ccagent.machine.sensors import parse_energy, parse_zone_name
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.tree import StillClock

POWERCAP = "sys/class/powercap"
RANGE = 262143328850
DRAM_RANGE = 65712999613
S0, S1 = Scope("socket", "0"), Scope("socket", "1")

TWO_SOCKETS = {
    "intel-rapl:0": ("package-0", 1000, RANGE),
    "intel-rapl:0:0": ("dram", 200, DRAM_RANGE),
    "intel-rapl:1": ("package-1", 3000, RANGE),
    "intel-rapl:1:0": ("dram", 400, DRAM_RANGE),
}
DIES = {
    "intel-rapl:0": ("package-0-die-0", RANGE - 989, RANGE),
    "intel-rapl:0:0": ("dram", 1, DRAM_RANGE),
    "intel-rapl:1": ("package-0-die-1", 20, RANGE),
    "intel-rapl:1:0": ("dram", 2, DRAM_RANGE),
}
AMD_RANGE = 65532610987
"""What max_energy_range_uj says on EPYC: 2^32 - 1 counts of 15.3 uJ."""


class Machine:
    """A tree with zones of RAPL; a reader, and the rates that the agent makes of it."""

    def __init__(self, root: Path, zones: dict[str, tuple[str, int, int]]) -> None:
        self.directory = root / POWERCAP
        for control in ("intel-rapl", "dtpm"):
            (self.directory / control).mkdir(parents=True)
        for zone, (name, energy, largest) in zones.items():
            self.add(zone, name, energy, largest)
        self.clock = StillClock()
        self.node = Node(root=str(root), hostname="n1", cluster="c1", clock=self.clock)
        self.reader = PowerReader()
        self._rates: Rates[Scope] = Rates()
        self._moment = 0.0

    def add(self, zone: str, name: str, energy: int, largest: int) -> None:
        self.write(zone, "name", f"{name}\n")
        self.write(zone, "max_energy_range_uj", f"{largest}\n")
        self.count(zone, energy)

    def count(self, zone: str, energy: int) -> None:
        self.write(zone, "energy_uj", f"{energy}\n")

    def write(self, zone: str, file: str, text: str) -> None:
        (self.directory / zone).mkdir(exist_ok=True)
        (self.directory / zone / file).write_text(text)

    def lose(self, zone: str) -> None:
        """What can't be read, by root neither: a directory."""
        (self.directory / zone / "energy_uj").unlink()
        (self.directory / zone / "energy_uj").mkdir()

    def read(self) -> set[Count]:
        found = list(self.reader.read(self.node))
        assert len({(one.metric, one.scope) for one in found}) == len(found)
        return set(found)

    def watts(self, seconds: float = 10) -> dict[tuple[str, Scope], float]:
        """What it makes some seconds after the reading before."""
        self._moment += seconds
        self.clock.sleep(seconds)
        found = self._rates.of(self.read(), PowerReader.metrics, self._moment)
        return {(metric, scope): round(rate, 9) for metric, rate, scope in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"package-0\n", ("cpu_power", 0)),
        (b"package-11", ("cpu_power", 11)),
        (b"package-1-die-3\n", ("cpu_power", 1)),
        (b"dram\n", ("mem_power", None)),
        (b"core\n", ("core_power", None)),
        (b"uncore\n", ("uncore_power", None)),
        (b"psys\n", ("psys_power", None)),
        (b"psys-1\n", ("psys_power", None)),
    ],
)
def test_names_of_zones(text: bytes, expected: tuple[str, int | None]) -> None:
    assert parse_zone_name(text) == expected


@pytest.mark.parametrize("text", [b"", b"package", b"package-x", b"package-0-die", b"gpu", b"\xff"])
def test_what_is_no_zone(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_zone_name(text)


@given(st.binary() | st.text("package-die0123456789").map(str.encode))
def test_names_are_understood_or_unparsable(content: bytes) -> None:
    try:
        metric, socket = parse_zone_name(content)
    except UnparsableError:
        return
    assert metric in PowerReader.metrics
    assert (socket is None) == (metric != "cpu_power")


@pytest.mark.parametrize(
    "text", [b"", b"-1", b"+1", b"1.5", b"0x1", b"1 2", b"18446744073709551616"]
)
def test_what_is_no_energy(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_energy(text)


@given(st.binary() | st.integers().map(lambda number: f"{number}\n".encode()))
def test_energies_are_understood_or_unparsable(content: bytes) -> None:
    try:
        energy = parse_energy(content)
    except UnparsableError:
        return
    assert 0 <= energy <= LARGEST_UINT


def test_sockets_have_their_own_and_the_node_has_the_sum(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    assert machine.read() == {
        Count("cpu_power", 1000, S0, RANGE),
        Count("cpu_power", 3000, S1, RANGE),
        Count("cpu_power", 0, NODE),
        Count("mem_power", 200, S0, DRAM_RANGE),
        Count("mem_power", 400, S1, DRAM_RANGE),
        Count("mem_power", 0, NODE),
    }
    assert machine.reader.errors == []


def test_energy_becomes_power(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    assert machine.watts() == {}
    for zone, joules in (("0", 2000), ("0:0", 250), ("1", 1500), ("1:0", 150)):
        (_, before, _) = TWO_SOCKETS[f"intel-rapl:{zone}"]
        machine.count(f"intel-rapl:{zone}", before + joules * 1_000_000)
    assert machine.watts() == {
        ("cpu_power", S0): 200.0, ("cpu_power", S1): 150.0, ("cpu_power", NODE): 350.0,
        ("mem_power", S0): 25.0, ("mem_power", S1): 15.0, ("mem_power", NODE): 40.0,
    }  # fmt: skip


def test_counters_that_wrap_go_on_in_the_sum_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    machine.count("intel-rapl:0", RANGE - 400_000_000)
    machine.watts()
    machine.count("intel-rapl:0", 600_000_000 - 1)
    machine.count("intel-rapl:1", 500_003_000)
    found = machine.watts()
    assert found["cpu_power", S0] == 100.0
    assert found["cpu_power", S1] == 50.0
    assert found["cpu_power", NODE] == 150.0


def test_dies_make_up_a_socket(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DIES)
    machine.watts()
    machine.count("intel-rapl:0", 10)  # it wraps 990 later
    machine.count("intel-rapl:1", 25)
    found = machine.watts()
    assert found["cpu_power", S0] == found["cpu_power", NODE] == (1000 + 5) / 1e7
    assert found["mem_power", S0] == found["mem_power", NODE] == 0.0
    assert S1 not in {scope for _, scope in found}


def test_numbers_of_zones_are_hexadecimal(tmp_path: Path) -> None:
    sockets = {f"intel-rapl:{n:x}": (f"package-{n}", 1000, RANGE) for n in range(17)}
    machine = Machine(tmp_path, sockets | {"intel-rapl:10:0": ("dram", 200, DRAM_RANGE)})
    found = {(each.metric, each.scope): each.value for each in machine.reader.read(machine.node)}
    assert found["cpu_power", Scope("socket", "11")] == 1000
    assert len([metric for metric, _ in found if metric == "cpu_power"]) == 18
    assert found["mem_power", Scope("socket", "16")] == 200


def test_the_same_packages_by_another_way_are_not_counted_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("package-0", 7, RANGE)})
    machine.add("intel-rapl-mmio:0", "package-0", 7, RANGE)
    assert machine.read() == {
        Count("cpu_power", 7, S0, RANGE),
        Count("cpu_power", 7, NODE, RANGE),
    }


@pytest.mark.parametrize("driver", ["intel-rapl", "amd-rapl"])
def test_zones_below_a_package_are_of_its_socket(tmp_path: Path, driver: str) -> None:
    machine = Machine(
        tmp_path,
        {
            f"{driver}:0": ("psys", 5, RANGE),
            f"{driver}:1": ("package-1", 4, RANGE),
            f"{driver}:1:0": ("core", 3, RANGE),
            f"{driver}:1:1": ("uncore", 2, RANGE),
            f"{driver}:10": ("package-0", 1, RANGE),
        },
    )
    found = {(one.metric, one.scope): one.value for one in machine.read()}
    assert found["psys_power", NODE] == 5
    assert found["core_power", S1] == found["core_power", NODE] == 3
    assert found["uncore_power", S1] == 2
    assert found["cpu_power", S0] == 1
    metrics = PowerReader.metrics
    assert {name for name in metrics if metrics[name].is_default} == {"cpu_power", "mem_power"}


def test_a_gap_in_which_a_counter_may_wrap_twice_has_no_power(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("package-0", 1000, AMD_RANGE)})
    machine.watts()
    machine.count("intel-rapl:0", 1000 + 4_000_000)  # after a wrap, or two
    assert machine.watts(seconds=300) == {}
    (error,) = machine.reader.errors
    assert error == (
        f"/{POWERCAP}/intel-rapl:0/energy_uj: no power since the last reading: 300 s between two"
        " readings, and the counter may wrap every 66 s"
    )
    machine.watts()
    machine.count("intel-rapl:0", 1000 + 4_000_000 + 1_000_000_000)
    assert machine.watts() == {("cpu_power", S0): 100.0, ("cpu_power", NODE): 100.0}
    assert machine.reader.errors == []


def test_between_readings_far_apart_the_counters_are_followed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"amd-rapl:0": ("package-0", 1000, AMD_RANGE)})
    machine.reader.interval = 300.0
    try:
        machine.watts()
        poller = machine.reader._poller
        assert poller is not None
        assert poller.is_running
        assert poller.interval == AMD_RANGE / 1e9 / 2
        for second in range(30, 301, 30):  # at 400 W it wraps after 164 s
            machine.clock.passed += 30
            machine.count("amd-rapl:0", (1000 + second * 400_000_000) % (AMD_RANGE + 1))
            with poller.lock:
                poller._function()
        machine._moment += 290
        machine.clock.passed -= 10
        assert machine.watts()["cpu_power", S0] == 400.0
    finally:
        machine.reader.close()
    assert not poller.is_running


@pytest.mark.parametrize("interval", [0.0, 30.0])
def test_readings_close_together_need_no_thread(tmp_path: Path, interval: float) -> None:
    machine = Machine(tmp_path, {"amd-rapl:0": ("package-0", 1000, AMD_RANGE)})
    machine.reader.interval = interval
    machine.watts()
    assert machine.reader._poller is None


def test_a_counter_that_starts_again_makes_no_leap(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("package-0", 9_000_000, RANGE)})
    machine.watts()
    machine.count("intel-rapl:0", 1_000_000)
    assert machine.watts() == {}
    assert machine.reader.errors[0].endswith("the counter was reset")


def test_an_unreadable_zone_costs_its_own_and_sums_with_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    machine.lose("intel-rapl:1")
    found = {(one.metric, one.scope) for one in machine.read()}
    assert found == {
        ("cpu_power", S0), ("mem_power", S0), ("mem_power", S1), ("mem_power", NODE),
    }  # fmt: skip
    assert machine.reader.errors == [f"/{POWERCAP}/intel-rapl:1/energy_uj: Is a directory"]


def test_after_an_outage_the_sum_goes_on_without_a_leap(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    machine.watts()
    machine.lose("intel-rapl:1")
    assert ("cpu_power", NODE) not in machine.watts()
    (machine.directory / "intel-rapl:1" / "energy_uj").rmdir()
    machine.count("intel-rapl:1", 900_000_000)
    assert ("cpu_power", NODE) not in machine.watts()
    machine.count("intel-rapl:1", 1_000_000_000)
    assert machine.watts()["cpu_power", NODE] == 10.0
    assert machine.reader.errors == []


def test_a_socket_that_goes_offline_makes_no_leap(tmp_path: Path) -> None:
    zones = {**TWO_SOCKETS, "intel-rapl:2": ("package-2", 50_000_000, RANGE)}
    machine = Machine(tmp_path, zones)
    machine.watts()
    (machine.directory / "intel-rapl:2").rename(tmp_path / "away")
    assert ("cpu_power", NODE) not in machine.watts()
    machine.watts()
    machine.count("intel-rapl:0", 1000 + 20_000_000)
    assert machine.watts()["cpu_power", NODE] == 2.0


def test_a_zone_without_a_readable_name_comes_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("package-0", 7, RANGE)})
    name = machine.directory / "intel-rapl:0" / "name"
    name.unlink()
    name.mkdir()
    for _ in range(2):
        assert machine.read() == set()
        assert machine.reader.errors == [f"/{POWERCAP}/intel-rapl:0/name: Is a directory"]
    name.rmdir()
    name.write_text("package-0\n")
    assert Count("cpu_power", 7, S0, RANGE) in machine.read()
    assert machine.reader.errors == []


def test_a_zone_that_goes_away_while_it_is_read_does_so_silently(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TWO_SOCKETS)
    (machine.directory / "intel-rapl:1" / "energy_uj").unlink()
    assert Count("cpu_power", 1000, S0, RANGE) in machine.read()
    assert machine.reader.errors == []


def test_an_unknown_zone_is_told_and_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("mystery", 7, RANGE)})
    machine.add("intel-rapl:0:0", "dram", 7, RANGE)
    assert machine.read() == set()
    assert machine.reader.errors == [
        f"/{POWERCAP}/intel-rapl:0/name: not a zone of RAPL: b'mystery\\n'"
    ]


def test_without_a_range_a_counter_is_taken_to_be_wide(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"intel-rapl:0": ("package-0", 7, RANGE)})
    machine.write("intel-rapl:0", "max_energy_range_uj", "\n")
    assert Count("cpu_power", 7, S0, 0) in machine.read()


def test_without_rapl_it_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="/sys/class/powercap: no zone of RAPL"):
        Machine(tmp_path, {}).read()
    node = Node(root=str(tmp_path / "sys"), hostname="n1", cluster="c1")
    with pytest.raises(NotHereError):
        PowerReader().read(node)


@contextlib.contextmanager
def unprivileged() -> Generator[None]:
    """Root may read everything, so be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def for_all() -> Generator[Path]:
    """A directory that everybody may enter, which tmp_path isn't."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def close(machine: Machine, zones: Iterable[str]) -> None:
    for zone in zones:
        (machine.directory / zone / "energy_uj").chmod(0)


def test_who_may_not_read_is_told_what_to_do_once(for_all: Path) -> None:
    machine = Machine(for_all, TWO_SOCKETS)
    close(machine, TWO_SOCKETS)
    with unprivileged():
        for _ in range(2):
            with pytest.raises(NotPermittedError) as caught:
                machine.read()
            text = str(caught.value)
            assert text.startswith(f"/{POWERCAP}/intel-rapl:0/energy_uj: Permission denied: ")
            assert 'SUBSYSTEM=="powercap"' in text
            assert "CAP_DAC_READ_SEARCH" in text
            assert machine.reader.errors == []
    for zone in TWO_SOCKETS:
        (machine.directory / zone / "energy_uj").chmod(0o444)
    assert len(machine.read()) == 6


def test_what_some_may_read_is_read(for_all: Path) -> None:
    machine = Machine(for_all, TWO_SOCKETS)
    close(machine, ["intel-rapl:1", "intel-rapl:1:0"])
    with unprivileged():
        assert machine.read() == {
            Count("cpu_power", 1000, S0, RANGE),
            Count("mem_power", 200, S0, DRAM_RANGE),
        }
    (error,) = machine.reader.errors
    assert error.startswith(f"/{POWERCAP}/intel-rapl:1/energy_uj: Permission denied: ")


def test_this_machine_says_what_its_files_say() -> None:
    files = [*Path("/sys/class/powercap").glob("intel-rapl:*/energy_uj")]
    try:
        before = {file: int(file.read_text()) for file in files}
    except OSError:
        before = {}
    node = Node(cluster="c1")
    if not before:
        with pytest.raises((NotHereError, NotPermittedError)):
            PowerReader().read(node)
        return
    try:
        found = list(PowerReader().read(node))
    except CcagentError as error:
        pytest.fail(str(error))
    after = [int(file.read_text()) for file in files]
    values = {one.value for one in found if one.metric == "cpu_power" and one.scope != NODE}
    assert values
    for value in values:
        assert any(
            low <= value <= high or low > high
            for low, high in zip(before.values(), after, strict=True)
        )
