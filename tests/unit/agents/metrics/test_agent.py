"""What the agent `metrics` sends, and that ClusterCockpit's store keeps it as it is meant."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING

import pytest

from ccagent.agents.base import AgentSettings
from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.readers.memory import MemoryReader
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.agents.metrics.settings import READERS, MetricsSettings, ReaderTables
from ccagent.config.files import convert
from ccagent.config.keys import describe_keys
from ccagent.counters import DaemonCounters
from ccagent.records.encoding import encode
from tests.support.paths import ROOT
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.settings import Settings

LINE = re.compile(
    r"(?P<name>[a-z0-9_]+),(?P<tags>\S+) value=(?P<value>-?[0-9.e+-]+i?) (?P<time>\d+)"
)


class Machine:
    """A node with two hwthreads, and what its agent sends."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.node = TreeNode(directory)
        self.ticks(0)
        self.agent = MetricsAgent(
            convert(settings, MetricsSettings, "agents.metrics", place="test"), frozenset({"line"})
        )
        self.agent.prepare(self.node)

    def ticks(self, user: int) -> None:
        """Set the time that the first hwthread spent for users; it was idle as long."""
        self.node.write(
            "stat",
            f"cpu  {user} 0 0 {user} 0 0 0 0 0 0\n"
            f"cpu0 {user} 0 0 {user} 0 0 0 0 0 0\ncpu1 0 0 0 {2 * user} 0 0 0 0 0 0\n"
            f"btime 1700000000\nctxt 5\nprocesses {user}\n",
        )

    def sample(self, seconds: float = 60, user: int = 0) -> list[re.Match[str]]:
        """Advance the clock and take a sample."""
        self.node.still.sleep(seconds)
        self.ticks(user)
        text = b"".join(m.body for m in encode(self.agent.sample(self.node), "line", self.node))
        found: list[re.Match[str]] = []
        for line in text.decode().splitlines():
            match = LINE.fullmatch(line)
            assert match is not None, line
            found.append(match)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def tags(line: re.Match[str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in line["tags"].split(","))


def values(lines: list[re.Match[str]], name: str) -> dict[str, float]:
    return {
        tags(line).get("type-id", "node"): float(line["value"].rstrip("i"))
        for line in lines
        if line["name"] == name
    }


def test_values_are_those_of_node_and_parts(machine: Machine) -> None:
    lines = machine.sample(user=3000)
    assert values(lines, "cpu_user") == {"0": 50.0, "1": 0.0, "node": 25.0}
    assert values(lines, "cpu_load") == {"node": 0.5}
    assert values(lines, "mem_used")["node"] == pytest.approx(4000 * 1024 / 1e9)


class TestRulesOfTheStore:
    """See the numbered list of what cc-metric-store does with a line."""

    def test_1_times_are_seconds(self, machine: Machine) -> None:
        assert {line["time"] for line in machine.sample()} == {"1700001060"}

    def test_2_a_step_has_one_value_of_each_series(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path, resolution="60s", readers=["cpu"])
        lines = [line for step in range(1, 14) for line in machine.sample(10, user=step * 100)]
        series = [(line["name"], line["tags"], int(line["time"]) // 60) for line in lines]
        assert len(series) == len(set(series))
        assert {int(line["time"]) % 60 for line in lines} == {0}

    def test_2_an_only_sample_is_told_as_it_is(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path, resolution="60s", readers=["cpu"])
        machine.agent.is_only_sample = True
        assert values(machine.sample(10, user=500), "cpu_user")["node"] == 25.0

    def test_3_a_node_has_no_type_id(self, machine: Machine) -> None:
        for line in machine.sample(user=100):
            assert ("type-id" in tags(line)) == (tags(line)["type"] != "node")

    def test_4_the_last_line_of_a_name_is_the_nodes(self, machine: Machine) -> None:
        last: dict[str, dict[str, str]] = {}
        for line in machine.sample(user=100):
            if tags(line)["type"] == "node":
                last[line["name"]] = tags(line)
        assert all("stype" not in of or of["stype"] == "job" for of in last.values())

    def test_5_later_samples_have_later_times(self, machine: Machine) -> None:
        times = [int(machine.sample()[0]["time"]) for _ in range(5)]
        assert times == sorted(set(times))

    def test_6_a_time_in_the_future_is_not_sent(self, machine: Machine) -> None:
        assert machine.sample()
        real = machine.node.still.time
        machine.node.still.time = lambda: real() + 86400  # type: ignore[method-assign]
        assert machine.sample() == []
        machine.node.still.time = real  # type: ignore[method-assign]
        assert machine.sample()

    def test_7_a_line_has_one_field_and_it_is_a_number(self, machine: Machine) -> None:
        assert len(machine.sample(user=100)) > 20

    def test_8_every_line_names_cluster_and_host(self, machine: Machine) -> None:
        for line in machine.sample():
            assert tags(line)["cluster"] == "test.org"
            assert tags(line)["hostname"] == "c1-1"

    def test_9_all_of_a_tick_have_its_time(self, machine: Machine) -> None:
        for _ in range(3):
            assert len({line["time"] for line in machine.sample(user=100)}) == 1


def test_a_reader_may_be_read_less_often(tmp_path: Path) -> None:
    machine = Machine(tmp_path, readers=["cpu", "memory"], cpu={"every": "3m"})
    told = [
        (bool(values(lines, "cpu_user")), bool(values(lines, "mem_used")))
        for lines in (machine.sample(user=1000 * minute) for minute in range(1, 8))
    ]
    # The clock begins 20 s after a whole minute, so slots of 3 minutes begin with every third.
    assert [with_memory for _, with_memory in told] == [True] * 7
    assert sum(with_cpu for with_cpu, _ in told) == 3


def test_a_sample_in_which_no_reader_is_due_is_not_blind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, readers=["cpu"], cpu={"every": "60s"})
    for second in range(1, 7):
        machine.sample(10, user=100 * second)
        assert not machine.agent.is_blind
    assert "no reader could read" not in caplog.text


def test_own_counters_do_not_make_a_blind_sample_see(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(_: int) -> None:
        """Write no file of /proc any more."""

    assert machine.sample()
    assert not machine.agent.is_blind
    monkeypatch.setattr(machine.node, "own_counters", lambda: DaemonCounters({}, {}))
    for path in (machine.node.path / "proc").rglob("*"):
        if path.is_file():
            path.unlink()
    monkeypatch.setattr(machine, "ticks", leave)
    assert "ccagent_mem_used" in {line["name"] for line in machine.sample()}
    assert machine.agent.is_blind


def test_rates_are_those_of_the_readers_own_interval(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, readers=["cpu"], cpu={"every": "2m"}, include=["forks"], preset="base"
    )
    lines = [line for minute in range(1, 8) for line in machine.sample(user=60 * minute)]
    rates = [float(line["value"]) for line in lines if line["name"] == "forks"]
    assert rates == [pytest.approx(1)] * len(rates)
    assert len(rates) >= 3


def test_the_document_of_metrics_is_that_of_the_code() -> None:
    render = run_path(str(ROOT / "packaging" / "metrics_document.py"))["render"]
    assert (ROOT / "agents" / "metrics" / "metrics.md").read_text() == render()


def keys_of(settings: type[Settings], above: str = "") -> Iterator[str]:
    for key in describe_keys(settings):
        name = f"{above}{key.name}"
        if key.within:
            yield from keys_of(key.settings, name + (".NAME." if key.within == "named" else "."))
        else:
            yield name


def keys_in(readme: str) -> Iterator[str]:
    _, _, table = readme.partition("| key | default | |\n")
    above = ""
    for row in table.partition("\n\n")[0].splitlines()[1:]:
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            full = above + name if name.startswith(".") else name
            above = full.rpartition(".")[0]
            yield full


def test_the_table_of_keys_has_every_key() -> None:
    common = {key.name for key in describe_keys(AgentSettings)}
    keys = {key for key in keys_of(MetricsSettings) if key not in common}
    intervals = {f"{name}.every" for name in READERS}
    documented = {*keys_in((ROOT / "agents" / "metrics" / "README.md").read_text())}
    assert documented - {"READER.every"} - intervals == keys - intervals
    assert documented & intervals <= keys


def test_every_reader_has_its_table() -> None:
    defaults = MetricsSettings()
    tables: dict[str, object] = {
        name: type(getattr(defaults, name)) for name in ReaderTables.__annotations__
    }
    readers = {name.replace("-", "_"): reader.Settings for name, reader in READERS.items()}
    assert tables == readers
    assert [*tables] == [*readers]


def test_a_source_that_fails_costs_its_metrics_and_comes_back(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    assert "mem_used" in {line["name"] for line in machine.sample()}
    machine.node.write("meminfo", "MemTotal: many kB\n")
    names = {line["name"] for line in machine.sample(user=100)}
    assert "mem_used" not in names
    assert "cpu_user" in names
    assert "agent metrics: memory:" in caplog.text
    machine.node.write("meminfo", "MemTotal: 16000 kB\nMemFree: 1000 kB\nMemAvailable: 12000 kB\n")
    assert "mem_used" in {line["name"] for line in machine.sample()}


def test_a_reader_that_stumbles_costs_its_metrics(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: object) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(MemoryReader, "read", stumble)
    names = {line["name"] for line in machine.sample(user=100)}
    assert "cpu_user" in names
    assert "mem_used" not in names
    assert "agent metrics: memory: unforeseen error" in caplog.text


def test_the_first_job_of_a_node_has_its_first_interval_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path, readers=["cgroup-jobs"])
    assert [machine.sample(60) for _ in range(10)] == [[]] * 10
    job = "../sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    machine.node.write(f"{job}/cpu.stat", "usage_usec 30000000\n")
    (line,) = machine.sample(60)
    assert line["name"] == "job_cpu_util"
    assert float(line["value"]) == 50


def test_the_preset_of_the_collector_has_its_meaning(tmp_path: Path) -> None:
    machine = Machine(tmp_path, preset="cc-metric-collector", readers=["cpu", "memory"])
    machine.node.write(
        "meminfo",
        "MemTotal: 16000 kB\nMemFree: 1000 kB\nMemAvailable: 12000 kB\nBuffers: 500 kB\n"
        "Cached: 6000 kB\nShmem: 200 kB\n",
    )
    lines = machine.sample(user=3000)
    # Percent of one hwthread, summed over all.
    assert values(lines, "cpu_user") == {"0": 50.0, "1": 0.0, "node": 50.0}
    assert values(lines, "mem_used")["node"] == 16000 - 1000 - 500 - 6000 - 200
    assert values(lines, "mem_free")["node"] == 1000
    assert values(lines, "load_one") == {"node": 0.5}
    assert not values(lines, "cpu_load")


def test_power_of_long_intervals_has_all_wraps_of_its_counters(tmp_path: Path) -> None:
    """EPYC at 400 W: the counter wraps every 164 s, and a sample comes every five minutes."""
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("65532610987\n")
    (zone / "energy_uj").write_text("0\n")
    machine = Machine(tmp_path, every="5m", readers=["power"])
    (reader,) = machine.agent.readers
    assert isinstance(reader, PowerReader)
    try:
        poller = reader._poller
        assert poller is not None
        for second in range(30, 301, 30):
            machine.node.still.sleep(30)
            (zone / "energy_uj").write_text(f"{second * 400_000_000 % 65532610988}\n")
            with poller.lock:
                poller._function()  # as its thread does
        found = machine.sample(seconds=0)
        assert {line["value"] for line in found} == {"400.0"}
    finally:
        machine.agent.close()
    assert not poller.is_running
