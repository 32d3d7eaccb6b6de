"""Cost of GPUs in a daemon's sample: eight cards with 200 processes.

    python benchmarks/gpus.py [--cards 8] [--processes 200] [--samples 100] [--maker nvidia]

The vendor's Python bindings run against a stand-in for its library, compiled here with cc; no card
is needed. The cost of a real library is additional. Starts sleeping processes, spreads them evenly
over the cards, and samples in turns with and without cards. CPU is the time of ccagent and of the
library's process, up to the encoded bytes. Compare the rows with each other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.sample import sleeping_processes
from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from tests.support.gpu_libraries import Libraries, compile_libraries

DIRECTORIES = {
    "nvidia": "sys/bus/pci/drivers/nvidia",
    "amd": "sys/bus/pci/drivers/amdgpu",
    "none": "",
}

NVIDIA = """
nvmlDeviceGetUUID {card} = GPU-{card:08}-0000-0000-0000-000000000000
nvmlDeviceGetPciInfo_v3 {card} = 00000000:{card:02}:00.0
nvmlDeviceGetMinorNumber {card} = {card}
nvmlDeviceGetMemoryInfo_v2 {card} = 85899345920 524288000 64424509440 20950548480
nvmlDeviceGetPowerManagementLimit {card} = 700000
nvmlDeviceGetClockInfo {card} 1 = 1755
nvmlDeviceGetClockInfo {card} 2 = 2600
nvmlDeviceGetComputeMode {card} = 0
nvmlDeviceGetPerformanceState {card} = 0
nvmlDeviceGetUtilizationRates {card} = 87 40
nvmlDeviceGetTemperature {card} 0 = 61
nvmlDeviceGetPowerUsage {card} = 512499
nvmlDeviceGetMigMode {card} = 0 0
nvmlDeviceGetComputeRunningProcesses_v3 {card} = {uses}
nvmlDeviceGetGraphicsRunningProcesses_v3 {card} =\x20
nvmlDeviceGetMPSComputeRunningProcesses_v3 {card} =\x20
nvmlDeviceGetProcessUtilization {card} = {samples}
"""

AMD = """
amdsmi_get_gpu_device_bdf {card} = 0000:{card:02}:00.0
amdsmi_get_gpu_device_uuid {card} = 73ff740f-0000-1000-80c0-2e1be2a6b{card:03}
amdsmi_get_gpu_enumeration_info {card} = {card} 0
amdsmi_get_power_cap_info {card} = 500000000 500000000 0 0 560000000
amdsmi_get_power_info {card} = 312 312
amdsmi_get_gpu_memory_total {card} = 68702699520
amdsmi_get_gpu_memory_usage {card} = 17175674880
amdsmi_get_clock_info {card} 0 = 1650 1700
amdsmi_get_clock_info {card} 4 = 1600 1600
amdsmi_get_temp_metric {card} 1 = 55
amdsmi_get_gpu_perf_level {card} = 3
amdsmi_get_gpu_activity {card} = 90 33
amdsmi_get_gpu_compute_partition {card} = SPX
amdsmi_get_gpu_process_list {card} = {uses}
"""


class CardsNode(Node):
    """This machine with a vendor's cards, or without cards."""

    cards = 0
    directory = ""

    def list(self, path: str) -> list[str]:
        """List the cards in the driver's directory."""
        if path == self.directory:
            return [f"0000:{card:02}:00.0" for card in range(self.cards)]
        return [] if path in DIRECTORIES.values() else super().list(path)


def scenario(maker: str, cards: int, pids: list[int]) -> str:
    """Return the library's answers for the cards, with new utilisation for each call."""
    lines = [f"nvmlDeviceGetCount_v2 = {cards}", f"amdsmi_get_processor_handles = {cards}"]
    for card in range(cards):
        here = pids[card::cards]
        uses = " ".join(f"{pid}:{500_000_000 + pid}" for pid in here)
        samples = " ".join(f"{pid}:{time.time_ns() // 1000}:3" for pid in here)
        form = NVIDIA if maker == "nvidia" else AMD
        lines.append(form.format(card=card, uses=uses, samples=samples))
    return "\n".join(lines)


def cpu_of(pid: int | None) -> float:
    """Return the CPU time of a process with one thread in milliseconds."""
    if pid is None:
        return 0.0
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def rss_of(pid: int) -> float:
    """Return the resident memory in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def library_processes() -> set[int]:
    """Return the child processes of the library."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        int(child)
        for child in children
        if b"ccagent.machine.gpu.gpus" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


def library_process() -> int | None:
    """Return the child process of the library."""
    return next(iter(library_processes()), None)


GPM = """
nvmlGpmQueryDeviceSupport {card} = 1
nvmlGpmMetricsGet {card} 1 = 97.5
nvmlGpmMetricsGet {card} 2 = 41.25
"""


def measure_activity(node: Node, readings: int) -> dict[str, float]:
    """Return ms of CPU of the library's process per reading, without and with GPM, in turns."""
    settings = SampleSettings()
    kinds: dict[str, tuple[str, ...]] = {"plain": (), "activity": ("graphics_active", "sm_active")}
    costs = dict.fromkeys(kinds, 0.0)
    gpus = {kind: settings.make_gpus(node) for kind in kinds}
    children: dict[str, int] = {}
    for number in range(readings + 2):
        for kind, details in kinds.items():
            before = all_cpu_of(children.get(kind))
            gpus[kind].ask("read", details)
            gpus[kind].reading([])
            if kind not in children:
                (child,) = library_processes() - set(children.values())
                children[kind] = child
            if number >= 2:
                costs[kind] += all_cpu_of(children[kind]) - before
        time.sleep(0.1)  # GPM needs time between two samples
    for each in gpus.values():
        each.close()
    return {kind: cost / readings for kind, cost in costs.items()}


def all_cpu_of(pid: int | None) -> float:
    """Return the CPU time of all threads of a process, also ended ones, in milliseconds."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--maker", choices=("nvidia", "amd"), default="nvidia")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sleeping_processes(options.processes):
        compile_libraries(Path(directory))
        libraries = Libraries(Path(directory), Path(directory) / "scenario")
        os.environ.update(libraries.environment)
        pids = [
            int(name)
            for name in os.listdir("/proc")
            if name.isdecimal() and Path(f"/proc/{name}/comm").read_text() == "sleep\n"
        ][: options.processes]
        nodes = {"without": CardsNode(cluster="benchmark"), "with": CardsNode(cluster="benchmark")}
        nodes["with"].cards = options.cards
        nodes["with"].directory = DIRECTORIES[options.maker]
        agents = {
            kind: SampleAgent(SampleSettings(), frozenset({"sonar"}))
            for kind in ("without", "with")
        }
        costs: dict[str, list[float]] = {"without": [], "with": [], "library": []}
        sizes: dict[str, int] = {}
        for number in range(options.samples + 2):
            libraries.play(scenario(options.maker, options.cards, pids))
            for kind, agent in agents.items():
                child = library_process() if kind == "with" else None
                own, others = cpu_of(os.getpid()), cpu_of(child)
                messages = encode(agent.sample(nodes[kind]), "sonar", nodes[kind])
                sizes[kind] = sum(len(message.body) for message in messages)
                if number >= 2:
                    costs[kind].append(cpu_of(os.getpid()) - own)
                    if child is not None:
                        costs["library"].append(cpu_of(child) - others)
        child = library_process()
        memory = 0.0 if child is None else rss_of(child)
        for agent in agents.values():
            agent.close()
        if options.maker == "nvidia":
            forms = (GPM.format(card=card) for card in range(options.cards))
            libraries.play(scenario(options.maker, options.cards, pids), *forms)
            activity = measure_activity(nodes["with"], options.samples)
            print(
                f"a reading of the library {activity['plain']:7.2f} ms CPU,"
                f" with GPM {activity['activity']:7.2f} ms"
            )
    median = {kind: statistics.median(values) for kind, values in costs.items()}
    gpus = median["with"] - median["without"] + median["library"]
    print(f"{options.cards} cards, {len(pids)} processes on them, {options.samples} samples")
    print(f"a sample without cards   {median['without']:7.2f} ms CPU  {sizes['without']:7} bytes")
    print(f"the same with cards      {median['with']:7.2f} ms CPU  {sizes['with']:7} bytes")
    print(f"the library's process    {median['library']:7.2f} ms CPU  {memory:7.1f} MB")
    ratio = gpus / median["without"]
    print(f"GPUs in all              {gpus:7.2f} ms CPU  {ratio:7.2f} times a sample without cards")


if __name__ == "__main__":
    main()
