"""The machine that runs the tests: what the agent `metrics` says of it, and what others say.

A counter that only grows is read by others right before and right after each of the agent's two
readings. What grew between them must then lie between what grew inside and what grew outside, on
the busiest machine: that needs no tolerance.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.disk import LOCAL
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.files import convert
from ccagent.errors import CcagentError
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.line_protocol import Line, decode_lines

CCAGENT = [sys.executable, "-m", "ccagent"]
MB = 10**6
WRITTEN = 32 * MB
BURNT = 0.6
"""Seconds of CPU time in user mode."""

TICK = 0.01
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Downsampler(Clock):
    """A clock on which the two readings are a second apart, so that rates are what grew."""

    def __init__(self) -> None:
        self._reading = 0.0

    def monotonic(self) -> float:
        return self._reading

    def sleep(self, seconds: float) -> None:
        self._reading += 1


class Snapshot:
    """Counters of the machine, as psutil and /proc tell them."""

    def __init__(self) -> None:
        statistics = psutil.cpu_stats()
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
        cards = psutil.net_io_counters(pernic=True, nowrap=False)
        disks = {name: each for name, each in disks.items() if is_disk(name)}
        cards = {name: each for name, each in cards.items() if is_card(name)}
        self.counters: dict[str, float] = {
            "context_switches": statistics.ctx_switches,
            "interrupts": statistics.interrupts,
            "disk_read": sum(disk.read_bytes for disk in disks.values()),
            "disk_write": sum(disk.write_bytes for disk in disks.values()),
            "disk_reads": sum(disk.read_count for disk in disks.values()),
            "disk_writes": sum(disk.write_count for disk in disks.values()),
            "net_bytes_in": sum(card.bytes_recv for card in cards.values()),
            "net_bytes_out": sum(card.bytes_sent for card in cards.values()),
            "net_pkts_in": sum(card.packets_recv for card in cards.values()),
            "net_pkts_out": sum(card.packets_sent for card in cards.values()),
            "net_errors_in": sum(card.errin for card in cards.values()),
            "net_drops_in": sum(card.dropin for card in cards.values()),
            "forks": numbers("/proc/stat")["processes"],
        }
        events = numbers("/proc/vmstat")
        self.counters |= {
            "page_faults": events["pgfault"],
            "major_page_faults": events["pgmajfault"],
        }
        self.times = psutil.cpu_times(percpu=True)


def numbers(path: str) -> dict[str, int]:
    """Return what lines `name number` say."""
    words = (line.split() for line in Path(path).read_text("ascii").splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def online() -> list[int]:
    """Return the numbers of the hwthreads, in the order in which psutil tells of them."""
    words = (line.split()[0] for line in Path("/proc/stat").read_text("ascii").splitlines())
    return [int(word[3:]) for word in words if word.startswith("cpu") and word != "cpu"]


def is_disk(name: str) -> bool:
    return Path(f"/sys/block/{name}/device").exists() and not name.startswith(("sr", "fd"))


def is_card(name: str) -> bool:
    return Path(f"/sys/class/net/{name}/device").exists()


class Observed:
    """Two readings of the agent with a known load between them, and snapshots around both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cpus = online()
        self.busy = min(os.sched_getaffinity(0))
        node = Node(clock=Downsampler())
        agent = MetricsAgent(
            convert(
                {
                    "preset": "base",
                    "readers": ["cpu", "memory", "network", "disk"],
                    "include": ["context_switches", "interrupts", "forks"],
                },
                MetricsSettings,
                "agents.metrics",
                place="test",
            ),
            frozenset({"line"}),
        )
        outside = Snapshot()
        node.clock.sleep(agent.prepare(node))
        inside = Snapshot()
        self._load()
        inside_after = Snapshot()
        self.points = list(agent.sample(node))
        outside_after = Snapshot()
        agent.close()
        self.inner = inside, inside_after
        self.outer = outside, outside_after

    def value(self, metric: str, place: str = "node", number: str = "") -> float:
        """Return what was sent."""
        (value,) = (
            point.value
            for point in self.points
            if point.name == metric
            and point.tags["type"] == place
            and point.tags.get("type-id", "") == number
        )
        return value

    def delta(self, counter: str) -> tuple[float, float]:
        """Return the least and the most that a counter can have grown by."""
        least, most = (
            after.counters[counter] - before.counters[counter]
            for before, after in (self.inner, self.outer)
        )
        return least, most

    def seconds(self, state: str, cpu: int) -> tuple[float, float]:
        """Return the least and the most that a hwthread can have been in a state."""
        index = self.cpus.index(cpu)
        least, most = (
            getattr(after.times[index], state) - getattr(before.times[index], state)
            for before, after in (self.inner, self.outer)
        )
        return least, most

    def _load(self) -> None:
        """Write to a disk, and burn time on one hwthread."""
        with (self.directory / "written").open("wb") as file:
            file.write(os.urandom(WRITTEN))
            file.flush()
            os.fsync(file.fileno())
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.busy})
        end = time.process_time() + BURNT
        while time.process_time() < end:
            sum(range(1000))
        os.sched_setaffinity(0, allowed)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(tmp_path_factory.mktemp("disk"))


@pytest.mark.parametrize(
    "metric",
    ["context_switches", "interrupts", "forks", "page_faults", "major_page_faults"],
)
def test_events_have_grown_as_proc_says(observed: Observed, metric: str) -> None:
    least, most = observed.delta(metric)
    assert least <= observed.value(metric) <= most


@pytest.mark.parametrize("metric", ["disk_read", "disk_write", "disk_reads", "disk_writes"])
def test_disks_have_moved_what_psutil_says(observed: Observed, metric: str) -> None:
    least, most = observed.delta(metric)
    assert least <= observed.value(metric) <= most


def test_what_was_written_and_synced_is_in_it(observed: Observed) -> None:
    device = os.stat(observed.directory).st_dev
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not link.exists() or not any(is_disk(name) for name in link.resolve().parts):
        pytest.skip(f"{observed.directory} is on no disk")
    assert observed.value("disk_write") >= WRITTEN


@pytest.mark.parametrize(
    "metric",
    ["net_bytes_in", "net_bytes_out", "net_pkts_in", "net_pkts_out", "net_errors_in",
     "net_drops_in"],
)  # fmt: skip
def test_cards_have_moved_what_psutil_says(observed: Observed, metric: str) -> None:
    names = os.listdir("/sys/class/net")
    if not any(is_card(name) for name in names):
        pytest.skip("no network interface is hardware")
    if any(Path(f"/sys/class/net/{name}/master").exists() for name in names if is_card(name)):
        pytest.skip("bonds and bridges stand for their interfaces")
    least, most = observed.delta(metric)
    assert least <= observed.value(metric) <= most


@pytest.mark.parametrize("state", STATES)
def test_shares_of_time_are_those_of_psutil(observed: Observed, state: str) -> None:
    # The kernel may tell a tick late, and of idle times it tells less now and then.
    slack = TICK * (20 if state in {"idle", "iowait"} else 2)
    for cpu in observed.cpus:
        bounds = [observed.seconds(each, cpu) for each in STATES]
        least_of_all, most_of_all = (sum(bound[end] for bound in bounds) for end in (0, 1))
        least, most = observed.seconds(state, cpu)
        share = observed.value(f"cpu_{state}", "hwthread", str(cpu)) / 100
        assert (least - slack) / (most_of_all + slack) <= share
        assert share <= (most + slack) / max(TICK, least_of_all - slack)


def test_a_busy_hwthread_is_busy(observed: Observed) -> None:
    # The time of a niced process is counted apart.
    states = ("cpu_user", "cpu_nice")
    share = sum(observed.value(name, "hwthread", str(observed.busy)) for name in states) / 100
    _, most = zip(*(observed.seconds(state, observed.busy) for state in STATES), strict=True)
    # Time in user mode is counted in ticks: a fifth of it may have gone elsewhere.
    assert share * sum(most) >= BURNT * 0.8


def test_the_node_has_the_mean_of_its_hwthreads(observed: Observed) -> None:
    for state in ("user", "system", "idle", "iowait", "steal"):
        parts = [
            point.value
            for point in observed.points
            if point.name == f"cpu_{state}" and point.tags["type"] == "hwthread"
        ]
        assert len(parts) == len(observed.cpus)
        assert observed.value(f"cpu_{state}") == pytest.approx(sum(parts) / len(parts))


class Once:
    """`ccagent metrics --once`, with what others said before, after, and all the while."""

    def __init__(self) -> None:
        self.loads: set[float] = set()
        self._is_over = threading.Event()
        watch = threading.Thread(target=self._watch)
        watch.start()
        self.memory, self.time = [psutil.virtual_memory()], [time.time()]
        done = subprocess.run(
            [*CCAGENT, "metrics", "--once"], capture_output=True, text=True, timeout=60, check=False
        )
        self.memory.append(psutil.virtual_memory())
        self.time.append(time.time())
        self._is_over.set()
        watch.join()
        assert done.returncode == 0, done.stderr
        self.lines: list[Line] = list(decode_lines(done.stdout, "s"))

    def of_node(self, metric: str) -> float:
        (value,) = (
            float(line.value)
            for line in self.lines
            if line.measurement == metric and "type-id" not in line.tags
        )
        return value

    def _watch(self) -> None:
        while True:
            self.loads.add(os.getloadavg()[0])
            if self._is_over.wait(0.05):
                return


@pytest.fixture(scope="module")
def once() -> Once:
    return Once()


def test_all_has_one_time_and_it_is_now(once: Once) -> None:
    (moment,) = {line.time for line in once.lines}
    assert moment is not None
    assert int(once.time[0]) <= moment / 1e9 <= once.time[1]


def test_load_is_one_that_the_kernel_told(once: Once) -> None:
    assert any(once.of_node("cpu_load") == pytest.approx(load, abs=0.006) for load in once.loads)


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("mem_available", "available"),
        ("mem_free", "free"),
        ("mem_buffers", "buffers"),
        ("mem_shared", "shared"),
        ("mem_slab", "slab"),
    ],
)
def test_memory_is_what_psutil_says(once: Once, metric: str, field: str) -> None:
    told = [getattr(memory, field) for memory in once.memory]
    # Others take and give back memory meanwhile: 2 % of it, at least as much as tests do.
    slack = max(256 * MB, once.memory[0].total * 0.02)
    assert min(told) - slack <= once.of_node(metric) * 1e9 <= max(told) + slack


def test_used_and_available_memory_are_all_of_it(once: Once) -> None:
    both = once.of_node("mem_used") + once.of_node("mem_available")
    assert both * 1e9 == pytest.approx(once.memory[0].total)


def test_swap_and_file_systems_are_as_large_as_psutil_says(once: Once) -> None:
    assert once.of_node("swap_total") * 1e9 == pytest.approx(psutil.swap_memory().total)
    local = {
        part.device: part.mountpoint
        for part in psutil.disk_partitions(all=False)
        if part.fstype in LOCAL and not part.mountpoint.startswith("/boot")
    }
    if not local or any(part.fstype in {"btrfs", "zfs"} for part in psutil.disk_partitions()):
        pytest.skip("file systems that share their space are summed up otherwise")
    sizes = [shutil.disk_usage(point).total for point in local.values()]
    assert once.of_node("disk_total") * 1e9 == pytest.approx(sum(sizes))
    fullest = max(psutil.disk_usage(point).percent for point in local.values())
    # psutil rounds to a tenth; what others write meanwhile is little.
    assert once.of_node("part_max_used") == pytest.approx(fullest, abs=1)


FRAMES = 1000
INSIDE = f"""
import pathlib, socket, subprocess, time
from ccagent.agents.metrics.readers.network import NetworkReader, NetworkReaderSettings
from ccagent.machine.node import Node

subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
for scope in ("all", "default"):
    switch = pathlib.Path(f"/proc/sys/net/ipv6/conf/{{scope}}/disable_ipv6")
    if switch.exists():
        switch.write_text("1")
for words in ("add one type veth peer name two", "set one up", "set two up", "set lo up"):
    subprocess.run(["ip", "link", *words.split()], check=True)
reader = NetworkReader(NetworkReaderSettings(include=("two",)))
node = Node()
list(reader.read(node))
local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
local.sendto(bytes(5000), ("127.0.0.1", 9))
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("one", 0))
for _ in range({FRAMES}):
    wire.send(bytes(12) + b"\\x88\\xb5" + bytes(986))
received = pathlib.Path("/sys/class/net/two/statistics/rx_packets")
end = time.monotonic() + 10
while int(received.read_text()) < {FRAMES} and time.monotonic() < end:
    time.sleep(0.01)
for count in reader.read(node):
    print(count.metric, count.value)
"""
"""In a network of its own: two ends of a wire, of which the second one counts."""


def test_frames_of_a_known_size_are_counted_and_those_of_loopback_not() -> None:
    apart = ["unshare", "--net", "--mount"]
    try:
        subprocess.run(
            [*apart, "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
            capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces with veth here: {error}")
    done = subprocess.run(
        [*apart, sys.executable, "-c", INSIDE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split() for line in done.stdout.splitlines())
    assert int(told["net_bytes_in"]) == 1000 * FRAMES
    assert int(told["net_pkts_in"]) == FRAMES
    assert int(told["net_bytes_out"]) == 0
    assert int(told["net_bw"]) == 1000 * FRAMES


@pytest.fixture
def busy() -> Iterator[int]:
    """A hwthread that computes all the time."""
    cpu = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: sum(range(1000))"
    process = subprocess.Popen([sys.executable, "-c", code])
    yield cpu
    process.kill()
    process.wait()


def test_instructions_per_cycle_are_those_of_perf_stat(busy: int) -> None:
    perf = shutil.which("perf")
    assert perf is not None, "tests/run installs it"
    reader, node = PerfReader(), Node()
    try:
        reader.read(node)
    except CcagentError as error:
        pytest.skip(str(error))
    try:
        done = subprocess.run(
            [perf, "stat", "-C", str(busy), "-x", ",", "-e", "cycles,instructions", "sleep", "2"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        found = {gauge.scope.type_id: gauge.value for gauge in reader.read(node)
                 if gauge.metric == "ipc"}  # fmt: skip
    finally:
        reader.close()
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in done.stderr.splitlines() if line.count(",") > 2]
    counted = {row[2].partition(":")[0]: row[0] for row in rows}
    if not all(value.isdigit() for value in counted.values()):
        pytest.skip(f"perf stat: {done.stderr.strip()}")
    # Both count the same loop, at times that differ by what starting perf takes.
    expected = int(counted["instructions"]) / int(counted["cycles"])
    assert found[str(busy)] == pytest.approx(expected, rel=0.15)
